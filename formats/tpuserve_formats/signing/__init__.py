"""Signatures of versions: ed25519 over the exact bytes of a manifest, which has the hash of every other file.

Needs the extra `signing`. docs/reference/manifest.md describes the format.
"""
