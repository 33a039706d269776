"""The serving process as a replica of Ray Serve: its models, its rule for requests, and its metrics."""
