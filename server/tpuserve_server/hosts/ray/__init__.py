"""The Ray host: Ray Serve's proxies listen, and each replica carries one application without ports."""
