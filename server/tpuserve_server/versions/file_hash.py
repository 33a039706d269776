"""The hash of a version's files, as manifests and the storage cache record it."""

import hashlib
from pathlib import Path

# Large, because the thread, which may have a low priority, needs the interpreter's lock between two pieces.
_PIECE_BYTES = 8 * 2**20


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal. Blocks while it reads the whole file. Raises OSError."""
    piece, digest = memoryview(bytearray(_PIECE_BYTES)), hashlib.sha256()
    with path.open("rb") as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
    return digest.hexdigest()
