"""Inputs to ask a model with: a user's own, or made up."""
