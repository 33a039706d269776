"""Runs device programs on a TPU, a GPU or the CPU through JAX's PJRT clients. Imports no TensorFlow."""
