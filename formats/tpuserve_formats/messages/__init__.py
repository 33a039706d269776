"""TensorFlow's and TensorFlow Serving's messages, without TensorFlow (docs/explanation/decisions/0027)."""
