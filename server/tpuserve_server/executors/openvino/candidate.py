"""`--openvino`: loads a version with TensorFlow, tries OpenVINO, and keeps the faster one with the same outputs."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from tpuserve_formats.safety.graph import Graph, Node, read_graphs
from tpuserve_server.core.system.memory import HostMemory, total_size
from tpuserve_server.core.system.threads import run_in_background
from tpuserve_server.core.terms.errors import FailedPrecondition, ServingError
from tpuserve_server.core.terms.servable import InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Array, ServableId, Signature, Tensors, TensorSpec
from tpuserve_server.executors.candidate import Candidate, ChosenServable, CompletedRun
from tpuserve_server.executors.openvino import OPENVINO, OpenVinoOptions
from tpuserve_server.executors.plugin import MissingRuntime
from tpuserve_server.executors.tensorflow import DEFAULT_TAGS
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tensorflow.run_graph import needed_nodes
from tpuserve_server.executors.tensorflow.session_config import cpu_has_bfloat16

if TYPE_CHECKING:
    from tpuserve_server.executors.openvino.model import OpenVinoModel


# A run of the signature with all of its outputs.
Run: TypeAlias = Callable[[Tensors], Tensors]

# Batch sizes of a version that states none.
_SIZES: Final = (1, 8)
# Largest number of sizes in a trial, and limits of its rounds.
_MOST_SIZES: Final = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 12
_BUDGET_S: Final = 2.0
# OpenVINO must be faster by this factor. A smaller gain may be due to the noise of the trial.
LEAST_GAIN: Final = 1.1


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed difference of an element: `atol + rtol * |expected|`."""

    atol: float
    rtol: float


def trial_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes to try, with the smallest and the largest."""
    sizes = sorted(batch_sizes) or list(_SIZES)
    if len(sizes) <= _MOST_SIZES:
        return tuple(sizes)
    places = np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int)
    return tuple(sizes[place] for place in places)


def generate_inputs(signature: Signature, rows: int) -> Tensors:
    """Return `rows` rows of random numbers, the same at each call. Only first dimensions may be free."""
    random = np.random.default_rng(rows)
    return {name: _generate(spec, rows, random) for name, spec in signature.inputs.items()}


def _generate(spec: TensorSpec, rows: int, random: np.random.Generator) -> Array:
    shape = tuple(rows if size is None else size for size in spec.shape or ())
    if spec.dtype.kind == "f":
        # 0-d as well: standard_normal returns a Python number for an empty shape.
        return np.asarray(random.standard_normal(shape), spec.dtype)
    if spec.dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape), spec.dtype)
    return np.asarray(random.integers(0, np.iinfo(spec.dtype).max, shape, endpoint=True), spec.dtype)


def check_outputs(expected: Tensors, received: Tensors, tolerance: Tolerance, rows: int) -> None:
    """Compare OpenVINO's outputs with TensorFlow's.

    Raises:
        FailedPrecondition: an output has another shape or dtype, or an element differs by more than the tolerance.
    """
    for name, want in expected.items():
        got = received[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise FailedPrecondition(
                f"its output '{name}' is {got.dtype.name} {list(got.shape)} instead of {want.dtype.name} "
                f"{list(want.shape)} for {rows} rows"
            )
        if want.dtype.kind != "f":
            if not np.array_equal(want, got):
                raise FailedPrecondition(f"its output '{name}' differs for {rows} rows")
        elif not np.allclose(got, want, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True):
            worst = float(np.nanmax(np.abs(got.astype(np.float64) - want)))
            raise FailedPrecondition(
                f"its output '{name}' differs by up to {worst:.2g} for {rows} rows; the tolerance is "
                f"{tolerance.atol:g} + {tolerance.rtol:g} * |expected|"
            )


def measure_gain(tensorflow: Run, openvino: Run, samples: Sequence[tuple[int, Tensors]]) -> float:
    """Return TensorFlow's time a row over OpenVINO's, averaged over the samples of (rows, inputs). Blocks for seconds.

    Both run in turns, and the shortest time of each counts, because other work of the machine only lengthens times.
    """
    least_s = {(run, rows): float("inf") for run in (tensorflow, openvino) for rows, _ in samples}
    started_s = time.monotonic()
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() - started_s > _BUDGET_S:
            break
        for rows, inputs in samples:
            for run in (tensorflow, openvino):
                least_s[run, rows] = min(least_s[run, rows], _time(run, inputs))
    cost_s = {run: sum(least_s[run, rows] / max(rows, 1) for rows, _ in samples) for run in (tensorflow, openvino)}
    return cost_s[tensorflow] / cost_s[openvino]


def _time(run: Run, inputs: Tensors) -> float:
    started_s = time.perf_counter()
    run(inputs)
    return time.perf_counter() - started_s


# Operations of a SavedModel that OpenVINO runs as TensorFlow does.
#
# OpenVINO converts more operations, but drops TensorFlow's checks of values: it ignores assertions, returns zeros for
# an index out of range, and converts random operations and changes of variables to constants. Only operations whose
# outcome depends on their inputs alone, and which fail for no values, are listed here.

_EQUAL: Final = frozenset(
    {
        # Structure, calls and variables.
        "Const", "Identity", "IdentityN", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault",
        "ReadVariableOp", "Snapshot", "StatefulPartitionedCall", "StopGradient", "VarHandleOp", "VariableV2",
        # Shapes.
        "BroadcastTo", "Cast", "Concat", "ConcatV2", "DepthToSpace", "ExpandDims", "Fill", "MirrorPad", "OnesLike",
        "Pack", "Pad", "PadV2", "Range", "Rank", "Reshape", "ReverseV2", "Shape", "ShapeN", "Size", "Slice",
        "SpaceToDepth", "Split", "SplitV", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unpack", "ZerosLike",
        # Arithmetic without division of integers.
        "Abs", "Add", "AddN", "AddV2", "Ceil", "ClipByValue", "Cos", "Erf", "Exp", "Expm1", "Floor", "Inv", "Log",
        "Log1p", "Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Rint", "Round", "Rsqrt",
        "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tanh",
        # Comparisons and choices.
        "ArgMax", "ArgMin", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalNot",
        "LogicalOr", "NotEqual", "Select", "SelectV2",
        # Reductions.
        "All", "Any", "Cumsum", "Max", "Mean", "Min", "Prod", "Sum",
        # Layers.
        "AvgPool", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "BiasAdd", "Conv2D", "Conv2DBackpropInput",
        "Conv3D", "DepthwiseConv2dNative", "Einsum", "Elu", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3",
        "LRN", "LeakyRelu", "LogSoftmax", "MatMul", "MaxPool", "Relu", "Relu6", "ResizeBilinear",
        "ResizeNearestNeighbor", "Selu", "Softmax",
    }
)  # fmt: skip
# Equal if their indices, the second input, are constants: such as those that read a dimension of a shape.
_LOOKUPS: Final = frozenset({"Gather", "GatherNd", "GatherV2"})


def find_different(graph: Graph, signature: Signature) -> str:
    """Return the name of an operation of the signature that OpenVINO may run differently; empty for none."""
    for nodes in _bodies(graph, signature):
        for node in nodes.values():
            is_equal = node.op in _EQUAL or node.op in graph.functions
            if not is_equal and not (node.op in _LOOKUPS and _has_constant_indices(node, nodes)):
                return node.op
    return ""


def _bodies(graph: Graph, signature: Signature) -> Iterator[Mapping[str, Node]]:
    """Yield the nodes that a run of the signature may execute: those of the graph, and of each called function."""
    main = {node.name: node for node in needed_nodes(graph.main.nodes, signature)}
    yield main
    pending = [main]
    seen = set[str]()
    while pending:
        called = {name for node in pending.pop().values() for name in (node.op, *node.functions)}
        for name in called & graph.functions.keys() - seen:
            seen.add(name)
            pending.append(graph.functions[name].nodes)
            yield pending[-1]


def _has_constant_indices(node: Node, nodes: Mapping[str, Node]) -> bool:
    inputs = [name.partition(":")[0] for name in node.inputs if not name.startswith("^")]
    return len(inputs) > 1 and inputs[1] in nodes and nodes[inputs[1]].op == "Const"


# OpenVINO computes 64-bit numbers with 32 bits.
_INPUT_DTYPES: Final = frozenset(map(np.dtype, ("float32", "float16", "uint8", "bool")))
_OUTPUT_DTYPES: Final = _INPUT_DTYPES | {np.dtype(np.int32)}


def suitable_signature(loaded: Servable, graph: memoryview, tags: tuple[str, ...]) -> Signature:
    """Return `serving_default` of a version that TensorFlow has loaded, if OpenVINO may run its `graph`. Blocks.

    Raises:
        FailedPrecondition: OpenVINO may not run it. The message has the reason.
    """
    signature = loaded.signatures.get(DEFAULT_SIGNATURE_NAME)
    if tags != DEFAULT_TAGS:
        raise FailedPrecondition("it reads only the graph with the tag 'serve'")
    if signature is None:
        raise FailedPrecondition(f"the version has no signature '{DEFAULT_SIGNATURE_NAME}'")
    if loaded.unrepeatable:
        raise FailedPrecondition(loaded.unrepeatable)
    _check_tensors(signature)
    _check_operations(signature, graph)
    return signature


def _check_tensors(signature: Signature) -> None:
    if signature.ragged_inputs or signature.ragged_outputs or not signature.inputs:
        raise FailedPrecondition(f"signature '{signature.name}' has ragged tensors or no inputs")
    for name, spec in signature.inputs.items():
        if spec.dtype not in _INPUT_DTYPES:
            raise FailedPrecondition(f"input '{name}' is {_dtype(spec.dtype)}")
        if spec.shape is None or None in spec.shape[1:]:
            raise FailedPrecondition(f"input '{name}' has a free dimension after the first")
    for name, spec in signature.outputs.items():
        if spec.dtype not in _OUTPUT_DTYPES:
            raise FailedPrecondition(f"output '{name}' is {_dtype(spec.dtype)}")


def _check_operations(signature: Signature, graph: memoryview) -> None:
    graphs = list(read_graphs(graph))
    if len(graphs) != 1:
        raise FailedPrecondition(f"the SavedModel has {len(graphs)} graphs")
    if operation := find_different(graphs[0], signature):
        raise FailedPrecondition(f"the operation {operation} is not among those that it runs as TensorFlow does")


def _dtype(dtype: "np.dtype[np.generic]") -> str:
    return "string" if dtype.hasobject else dtype.name


class OpenVinoServable:
    """Version on OpenVINO. `dispatch` runs the model at once, on OpenVINO's threads.

    TensorFlow runs the other signatures: OpenVINO converts one signature of a SavedModel. If there is no other, the
    servable keeps nothing of TensorFlow.
    """

    def __init__(
        self, model: "OpenVinoModel", signatures: Mapping[str, Signature], rest: Servable | None, device: str
    ) -> None:
        """Take ownership of `model`, and of `rest`, which runs all signatures except `serving_default`."""
        self._model = model
        self._rest = rest
        self.signatures: Mapping[str, Signature] = signatures
        self.device = device
        self.max_in_flight = 1
        # Only repeatable versions run on OpenVINO.
        self.unrepeatable = ""
        # OpenVINO compiles a program for each new shape in its first run, and its threads wait for each other.
        self.never_blocks = False

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature. Blocks until done.

        Raises:
            ServingError: as OpenVinoModel.run, or as the servable of the other signatures.
        """
        if self._rest is not None and signature_name != DEFAULT_SIGNATURE_NAME:
            return self._rest.dispatch(signature_name, inputs, output_names)
        return CompletedRun(self._model.run(inputs, output_names))

    def close(self) -> None:
        """Free both runtimes' memory."""
        self._model.close()
        if self._rest is not None:
            self._rest.close()


_log = logging.getLogger(__name__)

_FILES: Final = ("saved_model.pb", "variables")
# Tolerances of `tpuserve export` for float32, and for bfloat16 kernels.
_FLOAT32, _BFLOAT16 = Tolerance(1e-5, 1e-4), Tolerance(2e-2, 2e-2)


class TensorFlowOrOpenVino:
    """Candidate for every version. Both runtimes load it, and a trial chooses one. Thread-safe.

    TensorFlow serves a version that OpenVINO cannot run, or not with the same outputs in less time. Log and status then
    have the reason.
    """

    name = "TensorFlow or OpenVINO on the CPU"
    kind = "cpu"

    def __init__(
        self,
        tensorflow: TensorFlowOnDemand,
        options: OpenVinoOptions,
        memory: HostMemory,
        *,
        least_gain: float = LEAST_GAIN,
    ) -> None:
        """Take the candidate of TensorFlow. OpenVINO reserves the size of the version's files twice in `memory`.

        OpenVINO must be `least_gain` times as fast as TensorFlow.
        """
        self._tensorflow = tensorflow
        self._options = options
        self._memory = memory
        self._least_gain = least_gain
        self._has_bfloat16 = options.bfloat16_kernels and cpu_has_bfloat16(Path("/proc/cpuinfo"))

    @classmethod
    def of(cls, tensorflow: TensorFlowOnDemand, options: OpenVinoOptions, memory: HostMemory) -> Candidate:
        """Return the candidate that `options` want: TensorFlow alone if they are `off`."""
        return tensorflow if options.use == "off" else cls(tensorflow, options, memory)

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Implement Candidate.load. The trial takes seconds.

        Raises:
            ServingError: TensorFlow cannot load the version.
        """
        # `is_cached` makes TensorFlow's executor look for state and random operations.
        loaded = self._tensorflow.load(servable_id, replace(version, is_cached=True))
        try:
            chosen = self._try(loaded, version)
        except ServingError as error:
            reason, level = error.message, logging.WARNING if isinstance(error, MissingRuntime) else logging.INFO
        except Exception as error:  # OpenVINO may raise any error, and TensorFlow can serve the version
            _log.warning("OpenVINO fails for %s", servable_id, exc_info=error)
            reason, level = f"it fails with {type(error).__name__}", logging.WARNING
        else:
            _log.info("%s uses %s", servable_id, chosen.device)
            return chosen
        _log.log(level, "%s uses TensorFlow, not OpenVINO: %s", servable_id, reason)
        return ChosenServable(loaded, f"{loaded.device}, not OpenVINO: {reason}")

    def tracer(self) -> Tracer | None:
        """Return TensorFlow's tracer, because OpenVINO has none."""
        return self._tensorflow.tracer()

    def _try(self, loaded: Servable, version: VersionFiles) -> Servable:
        """Return the version on OpenVINO. Raises ServingError with the reason against it."""
        if not OPENVINO.is_installed:
            raise OPENVINO.missing("--openvino=auto needs")
        # Imported here, because they import TensorFlow, which most servers do not need at the start.
        from tpuserve_server.executors.openvino.candidate import suitable_signature
        from tpuserve_server.executors.tensorflow.pinned_saved_model import PinnedSavedModel

        tags = self._options.tags
        with contextlib.closing(PinnedSavedModel(version.path)) as files:
            signature = run_in_background(lambda: suitable_signature(loaded, files.graph, tags), "openvino-check")
            with self._memory.reserve(2 * total_size(*(version.path / name for name in _FILES))):
                return self._compare(loaded, signature, version, files.path)

    def _compare(self, loaded: Servable, signature: Signature, version: VersionFiles, path: Path) -> Servable:
        # Imported here, because the runtime is an extra.
        from tpuserve_server.executors.openvino.candidate import OpenVinoServable
        from tpuserve_server.executors.openvino.model import OpenVinoModel, runtime_version

        bfloat16 = self._options.mixed_precision or (version.allows_bfloat16 and self._has_bfloat16)
        # Not in the background: OpenVINO's threads would keep the niceness.
        model = OpenVinoModel(path, signature, bfloat16=bfloat16, num_threads=self._options.num_threads)
        try:
            gain = _try_inputs(loaded, model, signature, version.batch_sizes, self._tolerance(version))
            if gain < self._least_gain:
                raise FailedPrecondition(
                    f"it is {gain:.2f} times as fast as TensorFlow; {self._least_gain:g} is needed"
                )
        except BaseException:
            model.close()
            raise
        signatures, rest = loaded.signatures, loaded if len(loaded.signatures) > 1 else None
        if rest is None:
            loaded.close()
        kernels = ", bfloat16 kernels" if bfloat16 else ""
        device = f"CPU (OpenVINO {runtime_version()}{kernels}): {gain:.2f} times as fast as TensorFlow"
        return OpenVinoServable(model, signatures, rest, device)

    def _tolerance(self, version: VersionFiles) -> Tolerance:
        """Return the tolerance of the exporter's check, or a wider one if the operator wants bfloat16 without it."""
        found = _FLOAT32 if version.precision is None else Tolerance(version.precision.atol, version.precision.rtol)
        if self._options.mixed_precision:
            return Tolerance(max(found.atol, _BFLOAT16.atol), max(found.rtol, _BFLOAT16.rtol))
        return found


def _try_inputs(
    loaded: Servable,
    model: "OpenVinoModel",
    signature: Signature,
    batch_sizes: tuple[int, ...],
    tolerance: Tolerance,
) -> float:
    """Return how many times as fast OpenVINO is. Raises ServingError if a run fails or its outputs differ."""
    names = tuple(signature.outputs)

    def tensorflow(inputs: Tensors) -> Tensors:
        return loaded.dispatch(signature.name, inputs, names).result()

    def openvino(inputs: Tensors) -> Tensors:
        return model.run(inputs, names)

    samples = [(rows, generate_inputs(signature, rows)) for rows in trial_sizes(batch_sizes)]
    for rows, inputs in samples:
        check_outputs(tensorflow(inputs), openvino(inputs), tolerance, rows)
    return measure_gain(tensorflow, openvino, samples)
