"""TensorFlow Serving's JSON."""
