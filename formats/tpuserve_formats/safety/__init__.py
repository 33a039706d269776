"""Checks of the code in a model: operations of SavedModels, and calls out of StableHLO programs.

The exporter and the server use the same checks. `screening` is their entry for a SavedModel.
"""
