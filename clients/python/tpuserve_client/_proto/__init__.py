"""Generated messages (serving_pb2.py, serving_pb2.pyi) beside their source, serving.proto. generate.py renews them."""
