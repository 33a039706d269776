"""The parts of the Open Inference Protocol that gRPC and REST share."""
