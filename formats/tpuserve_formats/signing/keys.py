"""Keys of signatures: ed25519 (RFC 8032), in PEM files."""

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tpuserve_formats.signing.errors import BadKey

_ID_DIGITS = 16
_END: Final = b"-----END PUBLIC KEY-----"
_OPEN_TO_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def key_id(public_key: Ed25519PublicKey) -> str:
    """Return the name of a key for people: `ed25519:` and the first 16 digits of the sha256 of its 32 bytes."""
    return f"ed25519:{hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:_ID_DIGITS]}"


def write_key_pair(path: Path) -> Ed25519PublicKey:
    """Write a new private key to `path`, readable for its owner only, and the public key to `path` with `.pub`.

    Raises:
        OSError: a file exists or cannot be written.
    """
    private = Ed25519PrivateKey.generate()
    _write_new(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(path.with_name(f"{path.name}.pub"), public, 0o644)
    return private.public_key()


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key. Raises BadKey if the file is unreadable, open to other users, or has no such key."""
    try:
        if path.stat().st_mode & _OPEN_TO_OTHERS:
            raise BadKey(f"other users can access the private key {path}. Run chmod 600 {path}")
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise BadKey(f"cannot read the private key {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if isinstance(error, BadKey):
            raise
        raise BadKey(f"{path} has no private key in PEM without a password. Create one with tpuserve keygen") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"the private key in {path} is not an ed25519 key. Create one with tpuserve keygen")
    return key


def parse_public_keys(content: bytes, origin: str) -> Mapping[str, Ed25519PublicKey]:
    """Return one or more public keys by key id. Raises BadKey, which names `origin`, for another key or none."""
    try:
        *blocks, _ = content.split(_END)
        keys = [load_pem_public_key(block + _END) for block in blocks]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(f"{origin} has a public key that cannot be read. tpuserve keygen writes them") from error
    found = {key_id(key): key for key in keys if isinstance(key, Ed25519PublicKey)}
    if not found or len(found) < len(set(blocks)):
        raise BadKey(f"{origin} must contain one or more ed25519 public keys in PEM, and no others")
    return found
