"""Runs SavedModels by TensorFlow on the CPU."""
