"""Keys of signatures, in PEM files: ed25519 (RFC 8032) for manifests, and ECDSA for OpenSSF Model Signing."""

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm
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


# Hash of the signatures by a key of each curve, as the bundles of sigstore define it.
_HASHES: Final[Mapping[str, type[HashAlgorithm]]] = {"secp256r1": SHA256, "secp384r1": SHA384, "secp521r1": SHA512}

KeyType: TypeAlias = Literal["ed25519", "ecdsa-p256"]
PrivateKey: TypeAlias = Ed25519PrivateKey | EllipticCurvePrivateKey
PublicKey: TypeAlias = Ed25519PublicKey | EllipticCurvePublicKey


def key_id(public_key: PublicKey) -> str:
    """Return the name of a key for people: its algorithm and the first 16 digits of a sha256.

    For ed25519, it is the hash of the 32 bytes of the key, and for ECDSA `pem_hint`.
    """
    if isinstance(public_key, Ed25519PublicKey):
        return f"ed25519:{hashlib.sha256(public_key.public_bytes_raw()).hexdigest()[:_ID_DIGITS]}"
    return key_id_of_hint(pem_hint(public_key))


def key_id_of_hint(hint: str) -> str:
    """Return the key id of an ECDSA key by its hint in a bundle; empty for an empty hint."""
    return f"ecdsa:{hint[:_ID_DIGITS]}" if hint else ""


def pem_hint(public_key: EllipticCurvePublicKey) -> str:
    """Return the sha256 of a key's PEM text, by which bundles of OpenSSF Model Signing name it."""
    return hashlib.sha256(public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def hash_of_curve(public_key: EllipticCurvePublicKey) -> HashAlgorithm:
    """Return the hash of the signatures by a key that this module has read."""
    return _HASHES[public_key.curve.name]()


def _is_usable(key: object) -> bool:
    if isinstance(key, EllipticCurvePrivateKey | EllipticCurvePublicKey):
        return key.curve.name in _HASHES
    return isinstance(key, Ed25519PrivateKey | Ed25519PublicKey)


def write_key_pair(path: Path, kind: KeyType = "ed25519") -> PublicKey:
    """Write a new private key to `path`, readable for its owner only, and the public key to `path` with `.pub`.

    Raises:
        OSError: a file exists or cannot be written.
    """
    private = Ed25519PrivateKey.generate() if kind == "ed25519" else generate_private_key(SECP256R1())
    _write_new(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(path.with_name(f"{path.name}.pub"), public, 0o644)
    return private.public_key()


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def read_private_key(path: Path) -> PrivateKey:
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
    if not isinstance(key, Ed25519PrivateKey | EllipticCurvePrivateKey) or not _is_usable(key):
        raise BadKey(
            f"the private key in {path} is neither an ed25519 nor an ECDSA key. Create one with tpuserve keygen"
        )
    return key


def parse_public_keys(content: bytes, origin: str) -> Mapping[str, PublicKey]:
    """Return one or more public keys by key id. Raises BadKey, which names `origin`, for another key or none."""
    try:
        *blocks, _ = content.split(_END)
        keys = [load_pem_public_key(block + _END) for block in blocks]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadKey(f"{origin} has a public key that cannot be read. tpuserve keygen writes them") from error
    usable = [key for key in keys if isinstance(key, Ed25519PublicKey | EllipticCurvePublicKey) and _is_usable(key)]
    found = {key_id(key): key for key in usable}
    if not found or len(found) < len(set(blocks)):
        raise BadKey(f"{origin} must contain one or more ed25519 or ECDSA public keys in PEM, and no others")
    return found
