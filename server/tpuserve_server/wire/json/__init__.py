"""TensorFlow Serving's JSON encoding."""
