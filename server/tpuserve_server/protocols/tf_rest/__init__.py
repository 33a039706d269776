"""TensorFlow Serving's REST API, under /v1/."""
