"""Ensembles: pipelines of models, checked, loaded and run inside the server."""
