"""The serving core: models, versions, batches, deadlines. Standard library and numpy only; no protocol, no transport."""
