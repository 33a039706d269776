"""Aligned memory: bytes whose contents lie where runtimes read them in place (decisions 74 and 122)."""

import ctypes
from typing import Final, cast

import numpy as np

# Runtimes read memory in place only at such an address, and copy any other: TensorFlow with AVX-512 (TF_NewTensor),
# JAX on the CPU. The memory of numpy begins 16 bytes behind one, and that of bytes 32 or 48.
ALIGNMENT_BYTES: Final = 64
# CPython moves a bytearray that shrinks to less than half of its memory.
LEAST_BYTES: Final = 2 * ALIGNMENT_BYTES

# bytearray(size) writes zeros first, which takes as long as half a copy. Null instead of bytes leaves the memory as it
# is (CPython's C API, "Byte Array Objects").
_new_bytearray = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def aligned_bytes(size_bytes: int, contents_start: int = 0) -> bytearray:
    """Return uninitialised bytes, of which those from `contents_start` on lie at a multiple of ALIGNMENT_BYTES.

    Fewer than LEAST_BYTES lie anywhere.
    """
    memory = cast("bytearray", _new_bytearray(None, size_bytes + ALIGNMENT_BYTES))
    first = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    # CPython moves the start of a bytearray without a copy.
    del memory[: -(first + contents_start) % ALIGNMENT_BYTES]
    del memory[size_bytes:]
    return memory
