"""Messages of the Open Inference Protocol with Triton's extensions, over gRPC and in JSON."""
