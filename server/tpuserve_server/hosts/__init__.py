"""Hosts: the HTTP server in the process of the models, and replicas of Ray Serve. Both run the same Application."""
