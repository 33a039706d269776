"""The serving core: models, versions, batches, deadlines. Uses only numpy and the standard library."""
