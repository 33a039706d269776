"""Vertex AI's contract for custom containers: a health route and a predict route of the platform's choice.

https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""
