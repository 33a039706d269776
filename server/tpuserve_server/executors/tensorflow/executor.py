"""Runs SavedModels with TensorFlow on the CPU, through a session.

A session, because it loads all that TensorFlow Serving loads (`tf.saved_model.load` refuses some of its own test
models) and accepts the feeds it accepts; its callable also costs less than a signature's ConcreteFunction.
"""

import ctypes
import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import CallableOptions, RunOptions
from tpuserve_server.core.background import run_in_background
from tpuserve_server.core.errors import InvalidArgument, ServingError, error_for_code
from tpuserve_server.core.servable import InFlight, VersionFiles
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tensorflow.meta_graph import needs_exact_ranks, parse_signatures, restores_variables
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions
from tpuserve_server.executors.tensorflow.saved_session import SavedSession, SessionCallable
from tpuserve_server.executors.tensorflow.session_config import (
    cpu_has_bfloat16,
    run_options,
    session_config,
)

# Callables kept for each servable: one for each signature and set of outputs that clients ask for.
_MAX_CALLABLES = 64


class TensorFlowExecutor:
    """Loads SavedModels onto the CPU. Safe to use from several loading threads."""

    def __init__(self, options: TensorFlowOptions) -> None:
        """Nothing is loaded yet."""
        self._options = options
        self._has_bfloat16 = options.bfloat16_kernels and cpu_has_bfloat16(Path("/proc/cpuinfo"))
        # Set by whichever loading thread is the first to succeed.
        self._has_loaded = False

    def load(self, servable_id: ServableId, version: VersionFiles) -> "TensorFlowServable":
        """Load the SavedModel; slow. In the background, but for the first.

        Raises:
            ServingError: it is no SavedModel, or TensorFlow cannot restore it. The message holds no path.
        """
        load = functools.partial(
            self._load, servable_id, version.path, bfloat16=version.allows_bfloat16 and self._has_bfloat16
        )
        if self._has_loaded:
            return run_in_background(load, "load-tensorflow")
        # TensorFlow starts the threads that all sessions share with the first of them. They must not be nice, and there
        # is nobody yet to give way to.
        servable = load()
        self._has_loaded = True
        return servable

    def _load(self, servable_id: ServableId, path: Path, *, bfloat16: bool) -> "TensorFlowServable":
        config = session_config(self._options, bfloat16=bfloat16)
        try:
            session = SavedSession(path, self._options.tags, config)
        except ServingError as error:
            raise _load_error(error, path) from error
        try:
            meta_graph = session.take_meta_graph()
            signatures = _read(meta_graph, path)
        except (ServingError, ValueError, TypeError, DecodeError) as error:
            session.close()
            raise _load_error(InvalidArgument(str(error)), path) from error
        uses_bfloat16 = bfloat16 or bool(self._options.mixed_precision)
        return TensorFlowServable(
            servable_id,
            session,
            signatures,
            run_options(config),
            bfloat16=uses_bfloat16,
            exact_ranks=needs_exact_ranks(meta_graph),
        )


class TensorFlowServable:
    """A SavedModel in a session. `dispatch` runs at once: the CPU has nothing to overlap with."""

    def __init__(
        self,
        servable_id: ServableId,
        session: SavedSession,
        signatures: Mapping[str, Signature],
        options: RunOptions,
        *,
        bfloat16: bool,
        exact_ranks: bool,
    ) -> None:
        """Own `session` until `close`; every run is made with `options`.

        With `exact_ranks` inputs must have their signature's rank: some kernels end the process at another.
        """
        self._id = servable_id
        self._session = session
        self._signatures = signatures
        self._run_options = options
        self._bfloat16 = bfloat16
        self._exact_ranks = exact_ranks
        # Guards the callables, which several device threads may ask for.
        self._lock = threading.Lock()
        self._callables: OrderedDict[tuple[str, tuple[str, ...]], SessionCallable] = OrderedDict()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._signatures

    @property
    def device(self) -> str:
        """What it runs on, for people."""
        kernels = ", bfloat16 kernels" if self._bfloat16 else ""
        return f"CPU (TensorFlow {tf.__version__}{kernels})"

    @property
    def max_in_flight(self) -> int:
        """One: a run ends in `dispatch`."""
        return 1

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature; blocks until done.

        Raises:
            ServingError: with TensorFlow's code, and the first line of its message.
        """
        signature = self._signatures[signature_name]
        if self._exact_ranks:
            _check_ranks(signature, inputs)
        feeds = tuple([inputs[name] for name in signature.inputs])
        try:
            fetched = self._callable(signature, tuple(output_names))(feeds)
        except tf.errors.OpError as error:
            raise error_for_code(error.error_code, _first_line(error.message)) from error
        except UnicodeDecodeError as error:
            # TensorFlow quotes inputs in its messages, and here cannot make text of one. The code is lost; what it
            # quotes is what it blames.
            message = error.object.decode(errors="replace")
            raise InvalidArgument(_first_line(message)) from error
        return _Done(
            {
                name: np.array(value, object) if isinstance(value, bytes) else value
                for name, value in zip(output_names, fetched, strict=True)
            }
        )

    def close(self) -> None:
        """Close the session, and give what it took back to the system."""
        run_in_background(self._session.close, "unload-tensorflow")
        # Last: the session took its own part of each with it. Releasing them one by one before holds the interpreter's
        # lock, 2.5 ms for a graph of a thousand nodes.
        self._callables.clear()
        # Not in the background: it locks the allocator's arenas, and whoever holds a lock must not wait for the kernel.
        trim_memory()

    def _callable(self, signature: Signature, output_names: tuple[str, ...]) -> SessionCallable:
        # The callable itself may be called by several threads at once: DirectSession keeps each call's state apart.
        with self._lock:
            return self._find_callable(signature, output_names)

    def _find_callable(self, signature: Signature, output_names: tuple[str, ...]) -> SessionCallable:
        key = (signature.name, output_names)
        found = self._callables.get(key)
        if found is not None:
            self._callables.move_to_end(key)
        else:
            if len(self._callables) >= _MAX_CALLABLES:
                self._callables.popitem(last=False)
            options = CallableOptions(
                feed=[spec.graph_name for spec in signature.inputs.values()],
                fetch=[signature.outputs[name].graph_name for name in output_names],
                run_options=self._run_options,
            )
            found = self._callables[key] = self._session.make_callable(options)
        return found


@dataclass(frozen=True, slots=True)
class _Done:
    """A run that has ended."""

    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs


def trim_memory() -> None:
    """Hand freed memory back to the system, where the C library keeps it for later (glibc does)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read(meta_graph: bytes, path: Path) -> dict[str, Signature]:
    """The signatures; InvalidArgument where TensorFlow's loader has passed over missing weights without a word."""
    if not (path / "variables" / "variables.index").exists() and restores_variables(meta_graph):
        raise InvalidArgument("it has variables, but no variables/variables.index to restore them from")
    return parse_signatures(meta_graph)


def _check_ranks(signature: Signature, inputs: Tensors) -> None:
    for name, spec in signature.inputs.items():
        if spec.shape is not None and inputs[name].ndim != len(spec.shape):
            raise InvalidArgument(f"the model's operations take '{name}' with {len(spec.shape)} dimensions only")


def _load_error(error: ServingError, path: Path) -> ServingError:
    described = _first_line(error.message).replace(str(path), "the version directory")
    return error_for_code(error.code, f"TensorFlow cannot load the SavedModel: {described}")


def _first_line(message: str) -> str:
    """TensorFlow's messages go on with graph nodes and stacks, which are nobody's business outside."""
    return message.split("\n", 1)[0].strip()
