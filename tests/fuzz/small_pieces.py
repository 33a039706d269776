"""Small pieces: makes the readers of large bodies and long lists cut short ones, so that fuzzers reach their edges."""

import contextlib
from collections.abc import Iterator

from tpuserve_server.wire.json import large, layout, leaves, numbers

# Not powers of two, so that edges fall anywhere. A part of a long string holds any escape, and whole base64 groups.
_SIZES = (
    (layout, "_CHUNK_BYTES", 13),
    (leaves, "PIECE_BYTES", 7),
    (leaves, "_OBJECT_BYTES", 5),
    (large, "_ROWS_BYTES", 7),
    (large, "MEDIUM_BYTES", 64),
    (leaves, "_LONG_BYTES", 21),
    (leaves, "_PART_BYTES", 16),
    (numbers, "_LONG_LIST", 2),
    (numbers, "_STEP_BYTES", 13),
)


@contextlib.contextmanager
def small_pieces() -> Iterator[None]:
    """Set the sizes in this block. Not for several threads."""
    before = [getattr(module, name) for module, name, _ in _SIZES]
    try:
        for module, name, size in _SIZES:
            setattr(module, name, size)
        yield
    finally:
        for (module, name, _), size in zip(_SIZES, before, strict=True):
            setattr(module, name, size)
