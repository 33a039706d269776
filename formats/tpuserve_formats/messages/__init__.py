"""TensorFlow's and TensorFlow Serving's messages, without TensorFlow (docs/decisions/0027)."""
