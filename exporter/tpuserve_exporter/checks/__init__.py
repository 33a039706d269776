"""Checks that a written version must pass before it is published, and the inputs for them."""
