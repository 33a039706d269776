"""Runs SavedModels with TensorFlow on the CPU, through a v1 session.

A session, because it loads all that TensorFlow Serving loads (`tf.saved_model.load` refuses some of its own test
models) and accepts the feeds it accepts; its callable also costs less than a signature's ConcreteFunction.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2

from tpuserve_server.core.errors import InvalidArgument, ServingError, error_for_code
from tpuserve_server.core.servable import InFlight
from tpuserve_server.core.types import Array, ServableId, Signature, Tensors, TensorSpec

SERVE_TAGS = (tf.saved_model.SERVING,)

# RunOptions.inter_op_thread_pool: run operations in the thread that calls, which is the batcher's device thread.
_IN_CALLERS_THREAD = -1

# Callables kept for each servable: one for each signature and set of outputs that clients ask for.
_MAX_CALLABLES = 64

_Callable: TypeAlias = Callable[..., list[Array]]


@dataclass(frozen=True, slots=True)
class TensorFlowOptions:
    """Threads of one operation, 0 for as many as cores; operations at a time, 0 for one, in the caller's thread."""

    intra_op_parallelism: int = 0
    inter_op_parallelism: int = 0
    bfloat16_kernels: bool = True


class TensorFlowExecutor:
    """Loads SavedModels onto the CPU. Safe to use from several loading threads."""

    def __init__(self, options: TensorFlowOptions) -> None:
        """Nothing is loaded yet."""
        self._options = options
        self._has_bfloat16 = options.bfloat16_kernels and cpu_has_bfloat16(Path("/proc/cpuinfo"))

    def load(self, servable_id: ServableId, path: Path, *, allow_bfloat16: bool) -> "TensorFlowServable":
        """Load the SavedModel in `path`, tag `serve`; slow.

        Raises:
            ServingError: it is no SavedModel, or TensorFlow cannot restore it. The message holds no path.
        """
        bfloat16 = allow_bfloat16 and self._has_bfloat16
        session = tf.compat.v1.Session(graph=tf.Graph(), config=self._session_config(bfloat16=bfloat16))
        try:
            with session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(session, SERVE_TAGS, str(path))
            signatures = read_signatures(meta_graph)
        except (tf.errors.OpError, RuntimeError, OSError, ValueError, TypeError, DecodeError) as error:
            session.close()
            raise _load_error(error, path) from error
        return TensorFlowServable(
            servable_id,
            session,
            signatures,
            inter_op_pool=self._options.inter_op_parallelism > 0,
            bfloat16=bfloat16,
        )

    def _session_config(self, *, bfloat16: bool) -> config_pb2.ConfigProto:
        config = config_pb2.ConfigProto(
            intra_op_parallelism_threads=self._options.intra_op_parallelism,
            inter_op_parallelism_threads=self._options.inter_op_parallelism,
            # A GPU that is there is not this executor's: TensorFlow would take all of its memory.
            device_count={"GPU": 0},
            # Threads of its own would outlive no session, but each session would bring as many as there are cores.
            use_per_session_threads=False,
        )
        if bfloat16:
            rewrites = config.graph_options.rewrite_options
            rewrites.auto_mixed_precision_onednn_bfloat16 = rewriter_config_pb2.RewriterConfig.ON
        return config


class TensorFlowServable:
    """A SavedModel in a session. `dispatch` runs at once: the CPU has nothing to overlap with."""

    def __init__(
        self,
        servable_id: ServableId,
        session: tf.compat.v1.Session,
        signatures: Mapping[str, Signature],
        *,
        inter_op_pool: bool,
        bfloat16: bool,
    ) -> None:
        """Own `session` until `close`. Without `inter_op_pool` operations run one by one in the dispatching thread."""
        self._id = servable_id
        self._session = session
        self._signatures = signatures
        self._run_options = config_pb2.RunOptions(inter_op_thread_pool=0 if inter_op_pool else _IN_CALLERS_THREAD)
        self._bfloat16 = bfloat16
        # Guards the callables, which several device threads may ask for.
        self._lock = threading.Lock()
        self._callables: OrderedDict[tuple[str, tuple[str, ...]], _Callable] = OrderedDict()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._signatures

    @property
    def device(self) -> str:
        """What it runs on, for people."""
        kernels = ", bfloat16 kernels" if self._bfloat16 else ""
        return f"CPU (TensorFlow {tf.__version__}{kernels})"

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature; blocks until done.

        Raises:
            ServingError: with TensorFlow's code, and the first line of its message.
        """
        signature = self._signatures[signature_name]
        feeds = [inputs[name] for name in signature.inputs]
        try:
            fetched = self._callable(signature, tuple(output_names))(*feeds)
        except tf.errors.OpError as error:
            raise error_for_code(error.error_code, _first_line(error.message)) from error
        except UnicodeDecodeError as error:
            # TensorFlow quotes inputs in its messages, and here cannot make text of one. The code is lost; what it
            # quotes is what it blames.
            message = error.object.decode(errors="replace")
            raise InvalidArgument(_first_line(message)) from error
        return _Done(dict(zip(output_names, fetched, strict=True)))

    def close(self) -> None:
        """Close the session and let go of its graph and callables."""
        self._callables.clear()
        self._session.close()

    def _callable(self, signature: Signature, output_names: tuple[str, ...]) -> _Callable:
        # The callable itself may be called by several threads at once: DirectSession keeps each call's state apart.
        with self._lock:
            return self._find_callable(signature, output_names)

    def _find_callable(self, signature: Signature, output_names: tuple[str, ...]) -> _Callable:
        key = (signature.name, output_names)
        found = self._callables.get(key)
        if found is not None:
            self._callables.move_to_end(key)
        else:
            if len(self._callables) >= _MAX_CALLABLES:
                self._callables.popitem(last=False)
            options = config_pb2.CallableOptions(
                feed=[spec.graph_name for spec in signature.inputs.values()],
                fetch=[signature.outputs[name].graph_name for name in output_names],
                run_options=self._run_options,
            )
            # Not Session.run or make_callable: they check feeds against static shapes, as TensorFlow Serving does not.
            found = self._callables[key] = self._session._make_callable_from_options(options)
        return found


@dataclass(frozen=True, slots=True)
class _Done:
    """A run that has ended."""

    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs


def read_signatures(meta_graph: meta_graph_pb2.MetaGraphDef) -> dict[str, Signature]:
    """The signatures of a MetaGraphDef that can be called: initialisers and other bookkeeping left out."""
    return {
        name: Signature(
            name=name,
            inputs={alias: _tensor_spec(alias, info) for alias, info in sorted(definition.inputs.items())},
            outputs={alias: _tensor_spec(alias, info) for alias, info in sorted(definition.outputs.items())},
            method_name=definition.method_name,
        )
        for name, definition in sorted(meta_graph.signature_def.items())
        if not name.startswith("__saved_model_")
    }


def cpu_has_bfloat16(cpuinfo: Path) -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512_BF16, AMX_BF16, Arm's BF16). False where nobody can say."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})


def _tensor_spec(alias: str, info: meta_graph_pb2.TensorInfo) -> TensorSpec:
    # A string tensor arrives and leaves as an array of bytes objects.
    dtype: np.dtype[Any] = np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype)
    shape = info.tensor_shape
    dims = None if shape.unknown_rank else tuple(dim.size if dim.size >= 0 else None for dim in shape.dim)
    return TensorSpec(alias, dtype, dims, graph_name=info.name)


def _load_error(error: Exception, path: Path) -> ServingError:
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    code = error.error_code if isinstance(error, tf.errors.OpError) else InvalidArgument.code
    described = _first_line(message).replace(str(path), "the version directory")
    return error_for_code(code, f"TensorFlow cannot load the SavedModel: {described}")


def _first_line(message: str) -> str:
    """TensorFlow's messages go on with graph nodes and stacks, which are nobody's business outside."""
    return message.split("\n", 1)[0].strip()
