"""Requests that have ended: their stages, the slowest of them, their traces and their log lines."""
