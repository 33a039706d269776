"""The serving core: models, versions, batches and deadlines.

It uses only numpy and the standard library, and contains no protocol or transport.
"""
