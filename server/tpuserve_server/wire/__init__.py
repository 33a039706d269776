"""Encodings: bytes on the wire to the core's types and back. What a request means is the service's business."""
