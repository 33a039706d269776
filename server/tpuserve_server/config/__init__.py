"""Readers of the configuration files: text protos, their errors, and the poller of the model configuration."""
