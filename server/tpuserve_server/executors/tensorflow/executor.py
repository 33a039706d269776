"""Runs SavedModels with TensorFlow on the CPU, through a session.

A session loads every model that TensorFlow Serving loads, and accepts the same feeds. `tf.saved_model.load` refuses
some of TensorFlow Serving's test models. A session's callable also costs less than a signature's ConcreteFunction.
"""

import functools
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.errors_impl import DeadlineExceededError, OpError

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.official import CallableOptions, ConfigProto, RunOptions
from tpuserve_formats.safety.graph import Body, Graph, read_graphs
from tpuserve_server.core.system.memory import mapping_allocations
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.deadline import run_limit_s
from tpuserve_server.core.terms.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    error_for_code,
)
from tpuserve_server.core.terms.servable import DeviceMetrics, InFlight, VersionFiles
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors
from tpuserve_server.executors.candidate import CompletedRun
from tpuserve_server.executors.tensorflow import TensorFlowOptions, c_api
from tpuserve_server.executors.tensorflow.graph_needs import choose_graph, find_libraries
from tpuserve_server.executors.tensorflow.least_sizes import LeastSize, find_least_sizes
from tpuserve_server.executors.tensorflow.meta_graph import parse_signatures
from tpuserve_server.executors.tensorflow.pinned_saved_model import PinnedSavedModel
from tpuserve_server.executors.tensorflow.run_graph import (
    READS,
    RunGraph,
    RunNode,
    check_operations,
    find_missing_values,
    find_unrepeatable,
    has_effects,
    may_not_end,
)
from tpuserve_server.executors.tensorflow.saved_session import SavedSession, SessionCallable
from tpuserve_server.executors.tensorflow.session_config import (
    cpu_has_bfloat16,
    may_wait,
    run_options,
    session_config,
)
from tpuserve_server.executors.tensorflow.start import load_library, start_whole_tensorflow

_log = logging.getLogger(__name__)

# Check of a SavedModel's function calls, before TensorFlow reads the graph.
#
# TensorFlow replaces each call by the nodes of the called function, level by level. A function that calls itself, even
# under a condition, fills the memory or ends the process with a stack overflow (TensorFlow 2.21). The same holds for
# calls that are nested too deeply, and for functions that double their size at each level.

# TensorFlow 2.21 takes a second for 120 levels, minutes for 2,000, and ends the process at 10,000.
_MAX_DEPTH: Final = 256
# Nodes that the replacement of calls may add. TensorFlow needs more than a second for each 10,000.
_MAX_ADDED_NODES: Final = 1_000_000
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class _Calls:
    """The number of nodes in a graph or a function, and how often it refers to each name that may be a function's."""

    nodes: int
    called: Counter[str]

    @classmethod
    def of(cls, body: Body) -> "_Calls":
        called = Counter(name for node in body.nodes.values() for name in (node.op, *node.functions))
        return cls(len(body.nodes), called)


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Number of nodes of a graph or a function, and levels of calls, with all calls replaced."""

    nodes: int
    depth: int


def check_calls(graphs: Iterable[Graph]) -> None:
    """Check the functions of a SavedModel's graphs. Blocks.

    Raises:
        InvalidArgument: a function calls itself, calls are nested too deeply, or the graph has too many nodes with
            all calls replaced. The message names the function.
    """
    for graph in graphs:
        _check_graph(graph)


def _check_graph(graph: Graph) -> None:
    main, functions = _Calls.of(graph.main), {name: _Calls.of(body) for name, body in graph.functions.items()}
    measured: dict[str, _Expansion] = {}
    for name in functions:
        _measure(name, functions, measured)
    expanded = _expand(main, measured).nodes
    if expanded > _MAX_ADDED_NODES + main.nodes + sum(body.nodes for body in functions.values()):
        raise InvalidArgument(f"its functions call each other so often that the graph has {_count(expanded)} nodes")


def _measure(start: str, functions: Mapping[str, _Calls], measured: dict[str, _Expansion]) -> None:
    """Measure a function and all that it calls, callees first."""
    path = dict.fromkeys([start] if start not in measured else [])
    pending = [iter(functions[name].called) for name in path]
    while pending:
        name = next((one for one in pending[-1] if one in functions and one not in measured), None)
        if name is None:
            pending.pop()
            done, _ = path.popitem()
            measured[done] = _expand(functions[done], measured)
            if measured[done].depth > _MAX_DEPTH:
                raise InvalidArgument(f"its function {_shown(done)} nests more than {_MAX_DEPTH} calls")
        elif name in path:
            raise InvalidArgument(f"its function {_shown(name)} calls itself, which TensorFlow cannot run")
        else:
            path[name] = None
            pending.append(iter(functions[name].called))


def _expand(body: _Calls, measured: Mapping[str, _Expansion]) -> _Expansion:
    called = [(count, measured[name]) for name, count in body.called.items() if name in measured]
    nodes = body.nodes + sum(count * one.nodes for count, one in called)
    return _Expansion(nodes, 1 + max((one.depth for _, one in called), default=0))


def _count(nodes: int) -> str:
    """Return a number of nodes for people. It may have hundreds of digits."""
    return f"{nodes:,}" if nodes < 10**12 else "more than 10^12"


def _shown(name: str) -> str:
    return f"'{show_name(name[:_MOST_SHOWN])}'"


# Finds operations because of which a run may wait, or take longer than others. An event loop must not run such models.
#
# The shapes of its inputs must decide how long a run takes. The search therefore knows the operations that may occur,
# and errs on the safe side for all others: of TensorFlow's operations without state, too, some wait (BatchFunction),
# write files (DebugIdentity), or have outputs of any size (RaggedRange).

# Operations whose inputs' shapes decide their duration. No list has a loop or a branch.
_BY_SHAPE: Final = frozenset(
    {
        # Structure.
        "Const", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "NoOp", "PartitionedCall", "Placeholder",
        "PlaceholderWithDefault", "PreventGradient", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze",
        "StatefulPartitionedCall", "StopGradient",
        # Parts of arrays, and their order.
        "Concat", "ConcatV2", "Gather", "GatherNd", "GatherV2", "MatrixBandPart", "Pack", "Reverse", "ReverseV2",
        "Slice", "Split", "SplitV", "StridedSlice", "TopK", "TopKV2", "Transpose", "Unpack",
        # Numbers, one by one.
        "Abs", "Acos", "Add", "AddN", "AddV2", "Asin", "Atan", "Atan2", "BiasAdd", "BiasAddV1", "BitwiseAnd",
        "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Cos", "Cosh", "Div", "DivNoNan",
        "Elu", "Equal", "Erf", "Erfc", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual",
        "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu", "Less", "LessEqual", "Log", "Log1p", "LogicalAnd",
        "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike",
        "Pow", "RealDiv", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Selu",
        "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan",
        "Tanh", "TruncateDiv", "Xlog1py", "Xlogy", "ZerosLike",
        # Sums and products.
        "All", "Any", "ArgMax", "ArgMin", "AvgPool", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Conv2D",
        "Conv3D", "Cumprod", "Cumsum", "DepthwiseConv2dNative", "Einsum", "FusedBatchNorm", "FusedBatchNormV2",
        "FusedBatchNormV3", "L2Loss", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Prod", "Softmax", "Sum",
        # A signature with strings runs on its thread. Others of the version may run on the loop.
        "ParseExample", "ParseExampleV2",
    }
)  # fmt: skip
# Operations with an output whose size these inputs decide. They must be constants.
_BY_SIZE: Final[Mapping[str, tuple[int, ...]]] = {
    "BroadcastTo": (1,),
    "Fill": (0,),
    "LinSpace": (2,),
    "MirrorPad": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "PadV2": (1,),
    "Range": (0, 1, 2),
    "ResizeBilinear": (1,),
    "ResizeNearestNeighbor": (1,),
    "Tile": (1,),
}


def may_block(graph: RunGraph, signatures: Iterable[Signature]) -> bool:
    """Return whether a run of a signature may wait, or take longer than others with the same shapes."""
    nodes = (node for signature in signatures for node in graph.run_by(signature))
    return any(node.is_compiled or _may_block(node, graph.functions) for node in nodes)


def _may_block(node: RunNode, functions: Container[str]) -> bool:
    if node.op in _BY_SHAPE or node.op in READS or node.op in functions:
        return False
    sizes = _BY_SIZE.get(node.op)
    return sizes is None or not all(map(node.is_constant, sizes))


# Maximum number of callables of a servable: one for each signature and set of outputs that clients request.
_MAX_CALLABLES = 64
# A run on TensorFlow's threads that fails may return while one of them still unlocks a mutex of the graph: a call of a
# function reports its error while it holds the mutex (PartitionedCallOp::ComputeAsync,
# core/kernels/partitioned_function_ops.cc). Freeing the graph before would end the process.
_AFTER_FAILURE_S: Final = 1.0


class TensorFlowExecutor:
    """Loads SavedModels on the CPU. Thread-safe."""

    def __init__(self, options: TensorFlowOptions, metrics: DeviceMetrics | None = None) -> None:
        """Take the options, and check the CPU for bfloat16. `metrics` counts graphs that sessions build."""
        self._options = options
        self._metrics = metrics
        self._has_bfloat16 = options.bfloat16_kernels and cpu_has_bfloat16(Path("/proc/cpuinfo"))
        # Set by the first loading thread that succeeds.
        self._has_loaded = False

    def load(self, servable_id: ServableId, version: VersionFiles) -> "TensorFlowServable":
        """Load the SavedModel, in the background except for the first one. Slow.

        Raises:
            ServingError: there is no SavedModel, or TensorFlow cannot restore it. The message has no path.
        """
        load = functools.partial(
            self._load,
            servable_id,
            version.path,
            bfloat16=version.allows_bfloat16 and self._has_bfloat16,
            is_cached=version.is_cached,
        )
        if self._has_loaded:
            return run_in_background(load, "load-tensorflow")
        # The first session starts the threads that all sessions share. They need normal priority, and no other
        # TensorFlow model runs yet that the load could delay.
        servable = load()
        self._has_loaded = True
        return servable

    def _load(self, servable_id: ServableId, path: Path, *, bfloat16: bool, is_cached: bool) -> "TensorFlowServable":
        config = session_config(self._options, bfloat16=bfloat16)
        files = _pin(path)
        try:
            allowed = self._check(servable_id, path, files.graph)
            session = _open(files, self._options.tags, config)
        except BaseException:
            files.close()
            raise
        try:
            meta_graph = session.take_meta_graph()
            signatures = parse_signatures(meta_graph)
            graph, find_op = RunGraph.of(meta_graph), op_def_registry.get
            signatures = {
                # What the operator allows may write files or reach other processes.
                name: replace(one, has_effects=bool(allowed) or has_effects(graph, one, find_op))
                for name, one in signatures.items()
            }
            facts = RunFacts(
                find_unrepeatable(graph, signatures.values(), find_op) if is_cached else "",
                may_wait(config) or may_block(graph, signatures.values()),
                find_least_sizes(meta_graph, graph, signatures.values()),
                frozenset(name for name, one in signatures.items() if may_not_end(graph, one)),
            )
        except (ServingError, ValueError, TypeError, DecodeError) as error:
            session.close()
            raise _load_error(InvalidArgument(str(error))) from error
        kernels = ", bfloat16 kernels" if bfloat16 or self._options.mixed_precision else ""
        exceptions = f", with {', '.join(allowed)} by --allowed_ops" if allowed else ""
        device = f"CPU (TensorFlow {c_api.version()}{kernels}{exceptions})"
        return TensorFlowServable(servable_id, session, signatures, run_options(config), device, facts, self._metrics)

    def _check(self, servable_id: ServableId, path: Path, graph: memoryview) -> tuple[str, ...]:
        """Check the graph before TensorFlow reads it. Return its operations that only the operator allows."""
        try:
            graphs = list(read_graphs(graph))
            check_calls(graphs)
            chosen = choose_graph(graphs, self._options.tags)
            allowed = check_operations(graphs, self._options.tags, self._options.allowed_ops)
            if missing := find_missing_values(chosen, path):
                if missing.fails_version and not self._options.lenient_loads:
                    raise missing.error()
                _log.warning("%s is served, but %s", servable_id, missing.text)
        except FailedPrecondition:
            raise
        except NotFound as error:
            raise _load_error(error) from error
        except (ServingError, FormatError, DecodeError) as error:
            raise _load_error(InvalidArgument(str(error))) from error
        _define(chosen.operations())
        return allowed


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a version's runs, as the graph shows them.

    For `unrepeatable` see Servable. `may_block`: a run may wait, or take any time. `least_sizes`, by signature, are
    conditions of each run. Runs of the signatures `endless` may never end.
    """

    unrepeatable: str
    may_block: bool
    least_sizes: Mapping[str, Sequence[LeastSize]]
    endless: frozenset[str]


class TensorFlowServable:
    """SavedModel in a session. `dispatch` runs the model at once, because a CPU has no transfers to overlap."""

    # A run ends in `dispatch`.
    max_in_flight = 1

    def __init__(
        self,
        servable_id: ServableId,
        session: SavedSession,
        signatures: Mapping[str, Signature],
        options: RunOptions,
        device: str,
        facts: RunFacts,
        metrics: DeviceMetrics | None,
    ) -> None:
        """Take ownership of `session` until `close`. Every run uses `options`. `device` is for display."""
        self._metrics = metrics
        self.signatures = signatures
        self.device = device
        self.unrepeatable = facts.unrepeatable
        self.never_blocks = not facts.may_block
        self._id = servable_id
        self._session = session
        self._run_options = options
        self._least_sizes = facts.least_sizes
        # Signatures whose runs may never end. A run that ends within its limit removes its signature.
        self._endless = set(facts.endless)
        # Guards the callables, which several device threads may use.
        self._lock = threading.Lock()
        self._callables: OrderedDict[tuple[str, tuple[str, ...]], SessionCallable] = OrderedDict()
        # Callables whose run on TensorFlow's threads failed, and the time from which they may be freed.
        self._failed: list[SessionCallable] = []
        self._free_from_s = 0.0

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature. Blocks until done.

        Raises:
            InvalidArgument: a dimension of an input is too small for an operation.
            DeadlineExceeded: the run takes longer than `limit_runs` allows.
            ServingError: the run failed, with TensorFlow's code and the first line of its message.
        """
        for least in self._least_sizes.get(signature_name, ()):
            least.check(self._id, inputs)
        feeds = tuple(map(inputs.__getitem__, self.signatures[signature_name].inputs))
        key = signature_name, tuple(output_names)
        try:
            if (limit_s := run_limit_s()) and signature_name in self._endless:
                self._run_limited(key, feeds, limit_s)
            with self._lock:
                run = self._callables.get(key)
                if run is None:
                    run = self._add_callable(key)
                else:
                    self._callables.move_to_end(key)
            # Several threads may call it at once: DirectSession keeps the state of each call separate.
            fetched = run(feeds)
        except OpError as error:
            raise error_for_code(error.error_code, _first_line(error.message)) from error
        except UnicodeDecodeError as error:
            # TensorFlow's message quotes an input that is not UTF-8. This loses the error code, but the quoted input is
            # the cause.
            message = error.object.decode(errors="replace")
            raise InvalidArgument(_first_line(message)) from error
        outputs: dict[str, Array] = {}
        for name, value in zip(output_names, fetched, strict=True):
            outputs[name] = np.array(value, object) if isinstance(value, bytes) else value
        return CompletedRun(outputs)

    def close(self) -> None:
        """Close the session, which frees its memory."""
        time.sleep(max(self._free_from_s - time.monotonic(), 0.0))
        run_in_background(self._session.close, "unload-tensorflow")
        # Last, because the closed session has released its part of each callable. Releasing them one by one earlier
        # would hold the interpreter's lock for 2.5 ms with a graph of a thousand nodes.
        self._callables.clear()
        self._failed.clear()

    def _add_callable(self, key: tuple[str, tuple[str, ...]]) -> SessionCallable:
        if len(self._callables) >= _MAX_CALLABLES:
            self._callables.popitem(last=False)
        # TensorFlow optimises the graph, and copies its constants.
        with mapping_allocations():
            added = self._make_callable(key, self._run_options)
        self._callables[key] = added
        return added

    def _make_callable(self, key: tuple[str, tuple[str, ...]], run_options: RunOptions) -> SessionCallable:
        signature_name, output_names = key
        signature = self.signatures[signature_name]
        options = CallableOptions(
            feed=[spec.graph_name for spec in signature.inputs.values()],
            fetch=[signature.outputs[name].graph_name for name in output_names],
            run_options=run_options,
        )
        started_s = time.monotonic()
        made = self._session.make_callable(options)
        if self._metrics is not None:
            self._metrics.graph_built(duration_s=time.monotonic() - started_s)
        return made

    def _run_limited(self, key: tuple[str, tuple[str, ...]], feeds: Sequence[Array], limit_s: float) -> None:
        """Run with a limit. TensorFlow cannot limit runs on the calling thread, so this run has a separate callable."""
        options = RunOptions(timeout_in_ms=max(int(limit_s * 1000), 1))
        limited = self._make_callable(key, options)
        try:
            limited(feeds)
        except OpError as error:
            self._failed.append(limited)
            self._free_from_s = time.monotonic() + _AFTER_FAILURE_S
            if isinstance(error, DeadlineExceededError):
                raise DeadlineExceeded(f"the run does not end within {limit_s:g} s") from error
            raise
        self._endless.discard(key[0])


def _define(operations: Collection[str]) -> None:
    """Make TensorFlow know the operations.

    Raises:
        MissingRuntime: a library is not installed.
        FailedPrecondition: no library of the server has some of them, or a library cannot be loaded.
    """
    undefined = _undefined(operations)
    for library in find_libraries(undefined):
        load_library(library)
    if undefined and (undefined := _undefined(undefined)):
        # It has a few more, such as AudioMicrofrontend.
        start_whole_tensorflow()
    if undefined and (undefined := _undefined(undefined)):
        raise FailedPrecondition(
            f"the SavedModel needs operations that this server does not have: {', '.join(undefined)}. They belong to a "
            "library of custom operations. Export the model without them"
        )


def _undefined(operations: Collection[str]) -> list[str]:
    """Return the operations that TensorFlow and the loaded libraries lack."""
    return [show_name(one) for one in sorted(operations) if op_def_registry.get(one) is None]


def _pin(path: Path) -> PinnedSavedModel:
    try:
        return PinnedSavedModel(path)
    except ServingError as error:
        raise _load_error(error) from error


def _open(files: PinnedSavedModel, tags: Sequence[str], config: ConfigProto) -> SavedSession:
    """Load a pinned SavedModel. The session closes the files."""
    try:
        session = SavedSession(files.path, tags, config, files.close)
    except ServingError as error:
        message = error.message.replace(str(files.path), "the version directory")
        raise _load_error(error_for_code(error.code, message)) from error
    files.release_graph()
    return session


def _load_error(error: ServingError) -> ServingError:
    return error_for_code(error.code, f"TensorFlow cannot load the SavedModel: {_first_line(error.message)}")


def _first_line(message: str) -> str:
    """Return the first line. The others have graph nodes and stacks, which clients must not see."""
    return message.split("\n", 1)[0].strip()
