"""Rescaling and normalising inside a model: read the first operations on an image from its graph."""
