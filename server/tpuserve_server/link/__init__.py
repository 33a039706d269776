"""The link between the front-end processes and the engine process of one server."""
