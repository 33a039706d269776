"""The Envoy host: Envoy with this Python embedded in it, and its supervisor."""
