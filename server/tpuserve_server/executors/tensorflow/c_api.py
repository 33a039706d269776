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

from tpuserve_server.core.terms.errors import FailedPrecondition, error_for_code

# Opaque pointers, such as TF_Session * and TF_Graph *.
Pointer: TypeAlias = int

_POINTER = ctypes.c_void_p


class Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", _POINTER), ("length", ctypes.c_size_t), ("deallocator", _POINTER))

    def read(self) -> bytes:
        """Return a copy of the content."""
        return ctypes.string_at(self.data, self.length)


class Output(ctypes.Structure):
    """TF_Output: an output of an operation."""

    _fields_ = (("operation", _POINTER), ("index", ctypes.c_int))


_BUFFER = ctypes.POINTER(Buffer)
_SIZES = ctypes.POINTER(ctypes.c_int64)
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
    "TF_NewImportGraphDefOptions": (_POINTER, []),
    "TF_DeleteImportGraphDefOptions": (None, [_POINTER]),
    "TF_GraphImportGraphDef": (None, [_POINTER, _BUFFER, _POINTER, _POINTER]),
    "TF_GraphOperationByName": (_POINTER, [_POINTER, ctypes.c_char_p]),
    "TF_GraphGetTensorNumDims": (ctypes.c_int, [_POINTER, Output, _POINTER]),
    "TF_GraphGetTensorShape": (None, [_POINTER, Output, _SIZES, ctypes.c_int, _POINTER]),
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
        FailedPrecondition: this TensorFlow has no such library.
    """
    package = Path(pywrap_tf_session.__file__).parents[2]
    for path in sorted(package.glob("libtensorflow_cc.*")):
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        return loaded
    raise FailedPrecondition(
        f"TensorFlow {pywrap_tf_session.__version__} has no libtensorflow_cc next to its Python package"
    )


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


class ImportedGraph:
    """TF_Graph of a GraphDef, whose shapes TensorFlow has inferred."""

    def __init__(self, pointer: Pointer) -> None:
        self._pointer = pointer

    def shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """Return the shape of a tensor, such as `conv` or `conv:1`. None is an unknown rank or size."""
        name, _, index = tensor.partition(":")
        with status() as done:
            output = Output(library().TF_GraphOperationByName(self._pointer, name.encode()), int(index or 0))
            rank: int = library().TF_GraphGetTensorNumDims(self._pointer, output, done.pointer)
            done.check()
            sizes = (ctypes.c_int64 * max(rank, 0))()
            library().TF_GraphGetTensorShape(self._pointer, output, sizes, rank, done.pointer)
            done.check()
        return None if rank < 0 else tuple(None if size < 0 else size for size in sizes)


@contextmanager
def imported_graph(graph_def: bytes) -> Iterator[ImportedGraph]:
    """Import a serialized GraphDef, without a session, for the duration of the block.

    Raises:
        ServingError: the graph is not valid, or its shapes contradict each other.
    """
    pointer: Pointer = library().TF_NewGraph()
    options: Pointer = library().TF_NewImportGraphDefOptions()
    try:
        with buffer(graph_def) as content, status() as done:
            library().TF_GraphImportGraphDef(pointer, content, options, done.pointer)
            done.check()
        yield ImportedGraph(pointer)
    finally:
        library().TF_DeleteImportGraphDefOptions(options)
        library().TF_DeleteGraph(pointer)
