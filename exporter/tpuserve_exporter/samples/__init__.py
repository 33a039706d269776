"""Inputs for a model's checks: the user's samples, or made-up ones."""
