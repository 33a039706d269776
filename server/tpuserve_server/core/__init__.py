"""The serving core: models, versions, batches, deadlines. The standard library and numpy; no protocol, no transport."""
