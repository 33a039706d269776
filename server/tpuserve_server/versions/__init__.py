"""Version directories and their path to a servable: manifest, loading and warm-up."""
