"""Programs of the serving process, and of a replica of Ray Serve."""
