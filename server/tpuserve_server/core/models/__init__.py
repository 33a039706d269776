"""Models: their configuration, versions and states, from a directory to a loaded version and back."""
