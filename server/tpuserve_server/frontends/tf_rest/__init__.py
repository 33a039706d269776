"""TensorFlow Serving's REST API: everything under /v1/."""
