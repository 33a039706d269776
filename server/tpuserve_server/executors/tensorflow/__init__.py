"""Runs SavedModels with TensorFlow on the CPU."""
