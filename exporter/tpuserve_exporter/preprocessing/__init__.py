"""Detection of rescaling and normalization inside a model, from its first operations on an image."""
