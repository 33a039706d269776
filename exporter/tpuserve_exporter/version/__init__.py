"""The files of a version: written, read again and told apart from others."""
