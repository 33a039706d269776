"""Detection of rescaling and normalisation inside a model, from its first operations on an image."""
