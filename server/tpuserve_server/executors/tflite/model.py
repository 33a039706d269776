"""TfliteExecutor: loads TensorFlow Lite models, and runs their signatures with LiteRT's interpreters."""

import importlib.metadata
import logging
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from flatbuffers import flexbuffers
from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import MetaGraphDef, TensorInfo
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, file_error
from tpuserve_server.core.terms.servable import InFlight, VersionFiles
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, Array, ServableId, Signature, Tensors, TensorSpec
from tpuserve_server.executors.candidate import CompletedRun
from tpuserve_server.executors.tensorflow.meta_graph import read_signatures
from tpuserve_server.executors.tflite import MODEL_FILE, TfliteOptions

# Signatures of a TensorFlow Lite model, by TensorFlow Serving's rules (servables/tensorflow/tflite_session.cc).

logger = logging.getLogger(__name__)

# SignatureDefs of tensorflow/lite/tools/signature: a FlexBuffer map from name to serialized message.
_METADATA_NAME = b"signature_defs_metadata"
_PREDICT_METHOD_NAME = "tensorflow/serving/predict"


@dataclass(frozen=True, slots=True)
class Ends:
    """Input or output tensors of a model: their indices in the interpreter and their specs, by name in the file."""

    index: Mapping[str, int]
    spec: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, details: Sequence[Mapping[str, Any]]) -> "Ends":
        """Read the tensors from an interpreter's `get_input_details` or `get_output_details`.

        Raises:
            InvalidArgument: two tensors have the same name.
        """
        names = [detail["name"] for detail in details]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(f"The TensorFlow Lite model's tensor name: {name} has multiple indices")
        specs = {detail["name"]: tensor_spec(detail["name"], detail) for detail in details}
        return cls({detail["name"]: int(detail["index"]) for detail in details}, specs)

    def resolve(self, name: str) -> str | None:
        """Return the tensor's name in the model, or None. Early converters stripped the `:0` of TensorFlow's names."""
        stripped = name.partition(":")[0]
        return name if name in self.index else stripped if stripped in self.index else None


def tensor_spec(alias: str, detail: Mapping[str, Any]) -> TensorSpec:
    """Return the spec of a tensor. Free dimensions are those that the converter kept free."""
    dtype = np.dtype(object) if detail["dtype"] is np.bytes_ else np.dtype(detail["dtype"])
    dims = tuple(int(size) if size >= 0 else None for size in detail["shape_signature"])
    return TensorSpec(alias, dtype, dims, graph_name=detail["name"])


def metadata_signatures(content: bytes, inputs: Ends, outputs: Ends) -> dict[str, Signature]:
    """Return the signatures of the SignatureDefs in the model's metadata; empty if it has none.

    Raises:
        InvalidArgument: the SignatureDefs cannot be read, or name an unknown tensor.
    """
    meta_graph = MetaGraphDef()
    try:
        for name, serialized in _serialized_signatures(content).items():
            meta_graph.signature_def[name].ParseFromString(serialized)
    except (DecodeError, ValueError, TypeError, IndexError, struct.error) as error:
        raise InvalidArgument(f"Invalid SignatureDefs found in TfLite model: {type(error).__name__}") from error
    for definition in meta_graph.signature_def.values():
        _resolve(definition.inputs, inputs, "input")
        _resolve(definition.outputs, outputs, "output")
    return read_signatures(meta_graph)


def generated_signature(inputs: Ends, outputs: Ends) -> Signature:
    """Return `serving_default` for a model without SignatureDefs, with the names of its tensors without `:0`.

    If names differ only in `:n`, the last tensor takes the short name, as in TensorFlow Serving. TensorFlow Serving
    loses the other tensors. Here they keep their full names.
    """
    logger.info("No signature def found in TFLite model. Generating one.")
    return Signature(DEFAULT_SIGNATURE_NAME, _generated(inputs), _generated(outputs), _PREDICT_METHOD_NAME)


def _generated(ends: Ends) -> dict[str, TensorSpec]:
    last = {name.partition(":")[0]: name for name in sorted(ends.index)}
    aliases = {name: short for short, name in last.items()}
    named = {aliases.get(name, name): spec for name, spec in ends.spec.items()}
    return {
        alias: TensorSpec(alias, spec.dtype, spec.shape, graph_name=spec.graph_name)
        for alias, spec in sorted(named.items())
    }


def _resolve(infos: Mapping[str, TensorInfo], ends: Ends, kind: str) -> None:
    for alias, info in infos.items():
        name = ends.resolve(info.name)
        if name is None:
            raise InvalidArgument(
                f"Signature {kind} {alias} references an unknown tensor: Unknown tensor '{info.name}'."
            )
        info.name = name


def _serialized_signatures(content: bytes) -> dict[str, bytes]:
    model = schema.Model.GetRootAsModel(content, 0)
    for index in range(model.MetadataLength()):
        entry = model.Metadata(index)
        if entry.Name() == _METADATA_NAME:
            written = model.Buffers(entry.Buffer()).DataAsNumpy()
            signatures = flexbuffers.GetRoot(bytearray(written.tobytes())).AsMap
            return {
                key.AsKey: bytes(value.AsStringBytes)
                for key, value in zip(signatures.Keys, signatures.Values, strict=True)
            }
    return {}


_Run: TypeAlias = Callable[[Tensors, Sequence[str]], Tensors]

# Errors of the interpreter, for faults of a model and of a request.
_LITERT_ERRORS = (RuntimeError, ValueError)


class TfliteModel:
    """Signatures of a model and the interpreters that run them. For one thread at a time."""

    def __init__(self, content: bytes, num_threads: int) -> None:
        """Load the model from its file's `content`. Each operation uses `num_threads` threads.

        Raises:
            InvalidArgument: the content is not a model, has unreadable signatures, or its tensors cannot be allocated.
        """
        interpreter = _interpret(content, num_threads)
        main = _MainSubgraph(interpreter)
        found = metadata_signatures(content, main.inputs, main.outputs)
        if not found:
            generated = generated_signature(main.inputs, main.outputs)
            found = {generated.name: generated}
        self._runs: dict[str, _Run] = {name: main.bind(signature) for name, signature in found.items()}
        # Newer converters write signatures to a field of the flatbuffer. TensorFlow Serving's rules ignore them; this
        # server serves them too.
        others = [name for name in interpreter.get_signature_list() if name not in found]
        if others:
            # A separate interpreter, because an interpreter with signature runners refuses any other use.
            signature_interpreter = _interpret(content, num_threads)
            for name in others:
                found[name], self._runs[name] = _bind_runner(signature_interpreter, name)
        self.signatures: Mapping[str, Signature] = found

    def run(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run a signature. Blocks until done. The caller owns the outputs.

        Raises:
            InvalidArgument: LiteRT refused the inputs' shapes, or the run failed.
        """
        return self._runs[signature_name](inputs, output_names)


def _interpret(content: bytes, num_threads: int) -> Interpreter:
    try:
        return Interpreter(model_content=content, num_threads=num_threads)
    except _LITERT_ERRORS as error:
        raise InvalidArgument(f"LiteRT cannot load the TensorFlow Lite model: {_first_line(error)}") from error


class _MainSubgraph:
    """First subgraph of an interpreter. Tensors are allocated again only when a shape changes."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        # Allocated shapes by tensor; None before the first allocation and after a failure.
        self._shapes: dict[int, tuple[int, ...]] | None = None
        self.inputs = Ends.of(interpreter.get_input_details())
        self.outputs = Ends.of(interpreter.get_output_details())
        try:
            # A model that cannot be allocated, because of an unknown operation, must fail the load.
            interpreter.allocate_tensors()
        except _LITERT_ERRORS as error:
            raise InvalidArgument(f"Failed to allocate tensors: {_first_line(error)}") from error

    def bind(self, signature: Signature) -> _Run:
        """Return a function that runs `signature`. Tensor indices are looked up once."""
        inputs = {alias: self.inputs.index[spec.graph_name] for alias, spec in signature.inputs.items()}
        outputs = {alias: self.outputs.index[spec.graph_name] for alias, spec in signature.outputs.items()}

        def run(arrays: Tensors, output_names: Sequence[str]) -> Tensors:
            self._allocate({index: arrays[alias].shape for alias, index in inputs.items()})
            try:
                for alias, index in inputs.items():
                    self._interpreter.set_tensor(index, arrays[alias])
                self._interpreter.invoke()
            except _LITERT_ERRORS as error:
                raise InvalidArgument(f"Failed to invoke TfLite interpreter: {_first_line(error)}") from error
            return {name: self._interpreter.get_tensor(outputs[name]) for name in output_names}

        return run

    def _allocate(self, shapes: dict[int, tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        self._shapes = None
        try:
            for index, shape in shapes.items():
                # Not strict, as in TensorFlow Serving: a converter's fixed batch of 1 may be resized too.
                self._interpreter.resize_tensor_input(index, shape)
            self._interpreter.allocate_tensors()
        except _LITERT_ERRORS as error:
            raise InvalidArgument(f"Failed to allocate tensors: {_first_line(error)}") from error
        self._shapes = shapes


def _bind_runner(interpreter: Interpreter, name: str) -> tuple[Signature, _Run]:
    """Return a signature from the flatbuffer's field and its function. It may have a separate subgraph."""
    runner = interpreter.get_signature_runner(name)
    inputs = {alias: tensor_spec(alias, detail) for alias, detail in sorted(runner.get_input_details().items())}
    outputs = {alias: tensor_spec(alias, detail) for alias, detail in sorted(runner.get_output_details().items())}

    def run(arrays: Tensors, output_names: Sequence[str]) -> Tensors:
        try:
            results: dict[str, Array] = runner(**arrays)
        except _LITERT_ERRORS as error:
            raise InvalidArgument(f"Failed to invoke TfLite interpreter: {_first_line(error)}") from error
        return {alias: results[alias] for alias in output_names}

    return Signature(name, inputs, outputs), run


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()


# Refusal of TensorFlow Lite models with unknown custom operations, or with data in other files.
#
# LiteRT's own operations only compute. Custom ones, such as `Flex…` for TensorFlow's operations, may do anything.

# Custom operations that LiteRT has itself (tensorflow/lite/core/kernels/register.cc). They compute.
_ALLOWED: Final = frozenset({"AudioSpectrogram", "Mfcc", "NumericVerify", "TFLite_Detection_PostProcess"})


def check_operations(content: bytes, allowed: Collection[str]) -> None:
    """Check a model before LiteRT reads it.

    Raises:
        FailedPrecondition: the model has custom operations that are not in `allowed`, or data in other files.
        InvalidArgument: the content is damaged.
    """
    try:
        model = schema.Model.GetRootAsModel(content, 0)
        custom, has_other_files = set(_custom_operations(model)), model.ExternalBufferGroupsLength() > 0
    except (struct.error, ValueError, TypeError, IndexError) as error:
        raise InvalidArgument(f"The TensorFlow Lite model is damaged: {type(error).__name__}") from error
    if has_other_files:
        raise FailedPrecondition("the TensorFlow Lite model has data in other files, which this server does not read")
    if refused := sorted(custom - _ALLOWED - set(allowed)):
        names = ",".join(map(show_name, refused))
        raise FailedPrecondition(
            f"this server refuses custom operations of the TensorFlow Lite model: {names}. Convert the model without "
            f"them. If you trust its author, allow them: --allowed_ops={names}"
        )


def _custom_operations(model: schema.Model) -> Iterator[str]:
    for index in range(model.OperatorCodesLength()):
        name = model.OperatorCodes(index).CustomCode()
        if name:
            yield name.decode(errors="replace")


class TfliteExecutor:
    """Loads `model.tflite`. Thread-safe; keeps no state between loads."""

    def __init__(self, options: TfliteOptions) -> None:
        """Take the options of the models."""
        self._options = options

    def load(self, servable_id: ServableId, version: VersionFiles) -> "TfliteServable":
        """Load `model.tflite`. It runs LiteRT's kernels, whatever kernels the exporter has checked.

        Raises:
            InvalidArgument: the file is not a model, or needs an operation that LiteRT does not have.
            FailedPrecondition: the model has custom operations that this server refuses, or data in other files.
        """
        try:
            # Not loaded by path: LiteRT would map the file, and overwriting it would change the loaded model.
            content = (version.path / MODEL_FILE).read_bytes()
        except OSError as error:
            raise file_error(f"{MODEL_FILE} cannot be read", error) from error
        if not content:
            raise InvalidArgument(f"{MODEL_FILE} is empty")
        check_operations(content, self._options.allowed_ops)
        return TfliteServable(content, self._options)


class TfliteServable:
    """Model and its interpreters. `dispatch` runs at once, on the calling thread.

    An interpreter serves one thread at a time. A run takes the most recently used interpreter, which stays warm. If all
    are busy, it creates another, up to the limit. `_changed` guards `_free` and `_made`.
    """

    # A run ends in `dispatch`, and another run may hold the interpreters.
    max_in_flight = 1
    never_blocks = False
    # State and random operations of a TensorFlow Lite model are unknown, so no model is repeatable.
    unrepeatable = "the server does not examine TensorFlow Lite models for state and random operations"

    def __init__(self, content: bytes, options: TfliteOptions) -> None:
        """Load the model from its file's `content`. Raises InvalidArgument as TfliteModel does."""
        self._content = content
        self._options = options
        first = TfliteModel(content, options.threads)
        self.signatures = first.signatures
        self.device = f"CPU (LiteRT {importlib.metadata.version('ai-edge-litert')})"
        self._changed = threading.Condition()
        self._free = [first]
        self._made = 1

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature. Blocks until an interpreter is free and the run has ended.

        Raises:
            InvalidArgument: LiteRT refused the inputs' shapes, or the run failed.
        """
        model = self._take()
        try:
            return CompletedRun(model.run(signature_name, inputs, output_names))
        finally:
            self._give_back(model)

    def close(self) -> None:
        """Release the interpreters and their memory."""
        self._free.clear()

    def _take(self) -> TfliteModel:
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._made < self._options.most_interpreters)
            if self._free:
                return self._free.pop()
            self._made += 1
        try:
            return TfliteModel(self._content, self._options.threads)
        except BaseException:
            with self._changed:
                self._made -= 1
                self._changed.notify()
            raise

    def _give_back(self, model: TfliteModel) -> None:
        with self._changed:
            self._free.append(model)
            self._changed.notify()
