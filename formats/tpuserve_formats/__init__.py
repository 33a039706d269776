"""Wire types and file formats that tpuserve's distributions share: numpy and protobuf, no TensorFlow."""

__version__ = "0.1.0"
