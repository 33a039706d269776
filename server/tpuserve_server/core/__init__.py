"""The serving core: models, versions, batches and deadlines. Standard library and numpy only; no protocol, no transport."""
