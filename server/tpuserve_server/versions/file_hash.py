"""The hash of a version's files, as manifests and the storage cache record it."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from tpuserve_server.core.terms.errors import DeadlineExceeded
from tpuserve_server.core.terms.storage import show_name

# Large, because the thread, which may have a low priority, needs the interpreter's lock between two pieces.
_PIECE_BYTES = 8 * 2**20


def sha256_of(path: Path, is_over: Callable[[], bool] = lambda: False) -> str:
    """Return the sha256 of a file in hexadecimal. Blocks while it reads the whole file.

    Raises:
        OSError: the file cannot be read.
        DeadlineExceeded: `is_over` returned True between two pieces.
    """
    piece, digest = memoryview(bytearray(_PIECE_BYTES)), hashlib.sha256()
    with path.open("rb") as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            if is_over():
                raise DeadlineExceeded(f"The hash of {show_name(path.name)} takes too long")
    return digest.hexdigest()
