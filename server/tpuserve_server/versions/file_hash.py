"""The hash of a version's files, as manifests and the storage cache record it."""

import hashlib
from pathlib import Path

# Large: between two pieces the thread, which may be a nice one, asks for the interpreter's lock.
_PIECE_BYTES = 8 * 2**20


def sha256_of(path: Path) -> str:
    """Of a file's contents, in hexadecimal; takes as long as the disk. Raises OSError."""
    piece, digest = memoryview(bytearray(_PIECE_BYTES)), hashlib.sha256()
    with path.open("rb") as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()
