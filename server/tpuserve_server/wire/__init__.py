"""Encodings: bytes on the wire to the core's types and back. The service interprets the requests."""
