"""Tensors of the Open Inference Protocol: datatypes, raw bytes and typed contents."""
