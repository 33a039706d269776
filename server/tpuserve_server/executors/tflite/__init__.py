"""Runs TensorFlow Lite models with LiteRT on the CPU."""
