"""Implements --freeze: computes what depends only on weights at export, and drops operations of training."""
