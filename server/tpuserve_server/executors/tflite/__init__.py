"""Runs TensorFlow Lite models by LiteRT on the CPU."""
