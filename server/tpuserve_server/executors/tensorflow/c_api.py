"""Part of TensorFlow's C library (tensorflow/c/c_api.h) that loads a SavedModel, through ctypes.

ctypes releases the interpreter's lock during each call. TensorFlow's Python API does not: the import of a ResNet-50's
graph holds it for 130 ms, and its deletion for 30 ms. The server answers no request during this time.
"""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tensorflow.python.client import pywrap_tf_session

from tpuserve_server.core.errors import Internal, error_for_code

# Opaque pointers, such as TF_Session * and TF_Graph *.
Pointer: TypeAlias = int

_POINTER = ctypes.c_void_p


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", _POINTER), ("length", ctypes.c_size_t), ("deallocator", _POINTER))

    def read(self) -> bytes:
        """Return a copy of the content."""
        return ctypes.string_at(self.data, self.length)


_BUFFER = ctypes.POINTER(Buffer)
_STRINGS = ctypes.POINTER(ctypes.c_char_p)

# name -> (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "TF_Version": (ctypes.c_char_p, []),
    "TF_NewStatus": (_POINTER, []),
    "TF_GetCode": (ctypes.c_int, [_POINTER]),
    "TF_Message": (ctypes.c_char_p, [_POINTER]),
    "TF_DeleteStatus": (None, [_POINTER]),
    "TF_NewBuffer": (_BUFFER, []),
    "TF_NewBufferFromString": (_BUFFER, [ctypes.c_char_p, ctypes.c_size_t]),
    "TF_DeleteBuffer": (None, [_BUFFER]),
    "TF_NewGraph": (_POINTER, []),
    "TF_DeleteGraph": (None, [_POINTER]),
    "TF_NewSessionOptions": (_POINTER, []),
    "TF_SetConfig": (None, [_POINTER, ctypes.c_char_p, ctypes.c_size_t, _POINTER]),
    "TF_DeleteSessionOptions": (None, [_POINTER]),
    "TF_LoadSessionFromSavedModel": (
        _POINTER,
        [_POINTER, _BUFFER, ctypes.c_char_p, _STRINGS, ctypes.c_int, _POINTER, _BUFFER, _POINTER],
    ),
    "TF_CloseSession": (None, [_POINTER, _POINTER]),
    "TF_DeleteSession": (None, [_POINTER, _POINTER]),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library that the tensorflow package has already loaded.

    Raises:
        Internal: this TensorFlow has no such library.
    """
    package = Path(pywrap_tf_session.__file__).parents[2]
    for path in sorted(package.glob("libtensorflow_cc.*")):
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        return loaded
    raise Internal(f"TensorFlow {pywrap_tf_session.__version__} has no libtensorflow_cc next to its Python package")


def version() -> str:
    """Return TensorFlow's version."""
    text: str = library().TF_Version().decode()
    return text


class Status:
    """TF_Status: the outcome of a call."""

    def __init__(self, pointer: Pointer) -> None:
        self.pointer = pointer

    def check(self) -> None:
        """Raise ServingError with the status code and TensorFlow's whole message, unless the status is OK."""
        code = library().TF_GetCode(self.pointer)
        if code:
            raise error_for_code(code, library().TF_Message(self.pointer).decode(errors="replace"))


@contextmanager
def status() -> Iterator[Status]:
    """Provide a status for the duration of the block."""
    pointer = library().TF_NewStatus()
    try:
        yield Status(pointer)
    finally:
        library().TF_DeleteStatus(pointer)


@contextmanager
def buffer(content: bytes = b"") -> Iterator[Any]:
    """Provide a TF_Buffer * with a copy of `content` for the duration of the block."""
    pointer = library().TF_NewBufferFromString(content, len(content)) if content else library().TF_NewBuffer()
    try:
        yield pointer
    finally:
        library().TF_DeleteBuffer(pointer)


@contextmanager
def session_options(config: bytes) -> Iterator[Pointer]:
    """Provide a TF_SessionOptions * of a serialized ConfigProto for the duration of the block."""
    pointer: Pointer = library().TF_NewSessionOptions()
    try:
        with status() as done:
            library().TF_SetConfig(pointer, config, len(config), done.pointer)
            done.check()
        yield pointer
    finally:
        library().TF_DeleteSessionOptions(pointer)
