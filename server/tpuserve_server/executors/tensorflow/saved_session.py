"""SavedSession: a SavedModel in a TensorFlow session, loaded by TensorFlow's own C++ loader.

TensorFlow Serving uses the same loader (cc/saved_model/loader.h). It loads assets, tables and TF1's initialisers.
The graph has no Python objects, which a garbage collection would have to traverse.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.client import pywrap_tf_session

from tpuserve_formats.messages.official import CallableOptions, ConfigProto, RunOptions
from tpuserve_server.core.terms.types import Array
from tpuserve_server.executors.tensorflow import c_api
from tpuserve_server.executors.tensorflow.session_config import IN_CALLERS_THREAD

# typeid(TF_Session).name(), as pybind11's conduit names capsules.
_SESSION_TYPE = b"10TF_Session"

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class SavedSession:
    """Owner of a TF_Session and its TF_Graph until `close`. Callables may run on several threads at once."""

    __slots__ = ("_capsule", "_close_files", "_graph", "_meta_graph", "_session")

    def __init__(
        self, path: Path, tags: Sequence[str], config: ConfigProto, close_files: Callable[[], None] | None = None
    ) -> None:
        """Load the graph with these tags from the SavedModel in `path`, on the calling thread. Slow.

        `close_files` runs when the graph, which may read files in `path`, is gone.

        Raises:
            ServingError: the load failed, with TensorFlow's code and message, which may contain the path.
        """
        library = c_api.library()
        self._close_files = close_files
        self._capsule: Any = None
        self._session: c_api.Pointer | None = None
        self._graph = library.TF_NewGraph()
        try:
            self._meta_graph = self._load(str(path).encode(), tags, config)
        except BaseException:
            self.close()
            raise
        self._capsule = _new_capsule(self._session, _SESSION_TYPE, None)

    def take_meta_graph(self) -> bytes:
        """Return the serialized MetaGraphDef and release it, because it may be large. Call this once."""
        meta_graph, self._meta_graph = self._meta_graph, b""
        return meta_graph

    def _load(self, path: bytes, tags: Sequence[str], config: ConfigProto) -> bytes:
        tag_set = (ctypes.c_char_p * len(tags))(*(tag.encode() for tag in tags))
        run_options = RunOptions(inter_op_thread_pool=IN_CALLERS_THREAD).SerializeToString()
        with (
            c_api.session_options(config.SerializeToString()) as options,
            c_api.buffer(run_options) as run,
            c_api.buffer() as meta_graph,
            c_api.status() as done,
        ):
            self._session = c_api.library().TF_LoadSessionFromSavedModel(
                options, run, path, tag_set, len(tags), self._graph, meta_graph, done.pointer
            )
            done.check()
            return bytes(meta_graph.contents.read())

    def _pybind11_conduit_v1_(self, abi: bytes, type_info: object, kind: bytes) -> object:
        """Return the TF_Session * in a capsule, for TensorFlow's pybind11 functions.

        pybind11 calls this method of an object from another library (pybind11/detail/cpp_conduit.h). After `close` the
        result is None, for which pybind11 raises TypeError.
        """
        return self._capsule

    def make_callable(self, options: CallableOptions) -> "SessionCallable":
        """Compile a callable from feeds to fetches. Slow.

        Raises:
            OpError: the graph has no such feed or fetch, or cannot be compiled.
        """
        return SessionCallable(self, options)

    def close(self) -> None:
        """Free the session, its variables and its graph. No callable may be running, or run afterwards."""
        library = c_api.library()
        self._capsule = None
        session, self._session = self._session, None
        graph, self._graph = self._graph, None
        with c_api.status() as ignored:
            if session:
                library.TF_CloseSession(session, ignored.pointer)
                library.TF_DeleteSession(session, ignored.pointer)
        if graph:
            library.TF_DeleteGraph(graph)
        close_files, self._close_files = self._close_files, None
        if close_files is not None:
            close_files()

    @property
    def is_open(self) -> bool:
        """Whether the session is open: False after `close`."""
        return self._capsule is not None


class SessionCallable:
    """Compiled run. TensorFlow keeps it until the last reference to this object is gone."""

    __slots__ = ("_handle", "_session")

    def __init__(self, session: SavedSession, options: CallableOptions) -> None:
        serialized = pywrap_tf_session.TF_NewBufferFromString(options.SerializeToString())
        try:
            self._handle = pywrap_tf_session.TF_SessionMakeCallable(session, serialized)
        finally:
            pywrap_tf_session.TF_DeleteBuffer(serialized)
        self._session = session

    def __call__(self, feeds: Sequence[Array]) -> list[Array | bytes]:
        """Return the fetches for `feeds`, in the order of the options. Blocks; does not check shapes.

        Numbers are arrays, or numpy scalars for rank 0. A string of rank 0 is bytes.

        Raises:
            OpError: an operation failed.
        """
        fetches: list[Array | bytes] = _run(self._session, self._handle, feeds, None)
        return fetches

    def __del__(self) -> None:
        # A call in progress holds a reference, so only an idle callable is released.
        if hasattr(self, "_session") and self._session.is_open:
            pywrap_tf_session.TF_SessionReleaseCallable(self._session, self._handle)


_run = pywrap_tf_session.TF_SessionRunCallable
