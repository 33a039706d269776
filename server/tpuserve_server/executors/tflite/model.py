"""One or two LiteRT interpreters that run a TensorFlow Lite model's signatures."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ai_edge_litert.interpreter import Interpreter

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Array, Signature, Tensors
from tpuserve_server.executors.tflite.signatures import Ends, generated_signature, metadata_signatures, tensor_spec

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
