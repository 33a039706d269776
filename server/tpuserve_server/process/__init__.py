"""The process that serves: built once, by itself or embedded in Envoy."""
