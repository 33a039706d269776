"""Signatures of versions: ed25519 over the exact bytes of a manifest, which has the hash of every other file.

`bundle.py` has another form of signatures, that of OpenSSF Model Signing. Needs the extra `signing`.
docs/reference/manifest.md describes both.
"""
