"""API keys: random texts, of which the server keeps the SHA-256 alone.

A key has 256 random bits, so nobody can find it from its hash by trying. A slow hash, as for passwords, would protect
nothing and would take milliseconds of each request.
"""

import hashlib
import secrets
from typing import Final

# Scanners for leaked secrets find keys by it.
KEY_PREFIX: Final = "tpuserve_"
_KEY_BYTES: Final = 32


def make_key() -> str:
    """Return a new random key in ASCII."""
    return f"{KEY_PREFIX}{secrets.token_urlsafe(_KEY_BYTES)}"


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a key or a token, whose bytes a header's text has as Latin-1."""
    return hashlib.sha256(secret.encode("latin-1", "replace")).digest()
