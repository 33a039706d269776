"""A SavedModel, loaded into a session as servers do, or by Python."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.errors import SessionLoadFailed, reason_of
from tpuserve_exporter.models.ragged import spread
from tpuserve_exporter.models.weights_check import release_weights
from tpuserve_exporter.sources.saved_model.graphs import SERVED
from tpuserve_exporter.terms.signature import Signature, Tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef


@contextlib.contextmanager
def load_session(path: Path) -> "Iterator[tuple[tf.compat.v1.Session, MetaGraphDef]]":
    """Load `path` into a session while the body runs. Raises SessionLoadFailed."""
    import tensorflow as tf

    graph = tf.Graph()
    with contextlib.closing(tf.compat.v1.Session(graph=graph)) as session:
        try:
            # The graph is the default graph only while it loads, so that the body runs other operations eagerly.
            with graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(session, list(SERVED), str(path))
        except (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError) as error:
            raise session_failure(error, path) from error
        yield session, meta_graph


def session_failure(error: Exception, path: Path) -> SessionLoadFailed:
    """Return the error for a failed load, without the path of the temporary directory."""
    reason = reason_of(error).replace(f"{path}/", "").replace(str(path), "it")
    return SessionLoadFailed(f"the SavedModel does not load in a session: {reason}")


def run_signature(session: "tf.compat.v1.Session", signature: Signature, inputs: Tensors) -> Tensors:
    """Return the outputs by name. Raises tf.errors.OpError, ValueError for unfit shapes, or UnicodeDecodeError."""
    feeds = {signature.inputs[name].graph_name: value for name, value in inputs.items()}
    outputs: Tensors = session.run({name: spec.graph_name for name, spec in signature.outputs.items()}, feed_dict=feeds)
    return outputs


class SourceSession:
    """The answers of a SavedModel that is a source, in a session from the first call of `run` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = contextlib.ExitStack()
        self._session: tf.compat.v1.Session | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. The version's graph has the names of the source's. Raises as `run_signature`."""
        if self._session is None:
            self._session, _ = self._opened.enter_context(load_session(self._path))
        return run_signature(self._session, signature, inputs)

    def release(self) -> None:
        """Free the memory of the variables."""
        self._session = None
        self._opened.close()


class PythonModel:
    """A SavedModel loaded by tf.saved_model.load. Some SavedModels load only in a session."""

    def __init__(self, path: Path) -> None:
        import tensorflow as tf

        self.loaded = tf.saved_model.load(str(path))

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises tf.errors.OpError if the graph fails."""
        import tensorflow as tf

        specs = signature.inputs
        tensors = {name: tf.constant(value, dtype=specs[name].dtype) for name, value in inputs.items()}
        outputs = spread(self.loaded.signatures[signature.name](**tensors), {})
        return {name: np.asarray(value) for name, value in outputs.items()}

    def release(self) -> None:
        """Release the weights' memory. The caller must not call `run` afterwards."""
        release_weights([self.loaded])
