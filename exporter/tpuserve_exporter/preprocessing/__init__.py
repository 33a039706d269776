"""What a model itself does to an image first: rescaling and normalising, read from its graph."""
