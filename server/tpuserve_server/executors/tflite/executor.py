"""Runs TensorFlow Lite models on the CPU with LiteRT (`ai-edge-litert`, the extra `tflite`)."""

import importlib.metadata
import struct
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ai_edge_litert import schema_py_generated as schema

from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import InFlight, VersionFiles
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tflite import TfliteOptions
from tpuserve_server.executors.tflite.model import TfliteModel

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


MODEL_FILE = "model.tflite"


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
            raise InvalidArgument(f"{MODEL_FILE} cannot be read: {error.strerror}") from error
        if not content:
            raise InvalidArgument(f"{MODEL_FILE} is empty")
        check_operations(content, self._options.allowed_ops)
        return TfliteServable(content, self._options)


class TfliteServable:
    """Model and its interpreters. `dispatch` runs at once, on the calling thread.

    An interpreter serves one thread at a time. A run takes the most recently used interpreter, which stays warm. If all
    are busy, it creates another, up to the limit. `_changed` guards `_free` and `_made`.
    """

    def __init__(self, content: bytes, options: TfliteOptions) -> None:
        """Load the model from its file's `content`. Raises InvalidArgument as TfliteModel does."""
        self._content = content
        self._options = options
        first = TfliteModel(content, options.threads)
        self._signatures = first.signatures
        self._changed = threading.Condition()
        self._free = [first]
        self._made = 1

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._signatures

    @property
    def device(self) -> str:
        """Description of the device, for display."""
        return f"CPU (LiteRT {importlib.metadata.version('ai-edge-litert')})"

    @property
    def max_in_flight(self) -> int:
        """Number of runs in flight: 1, because a run ends in `dispatch`."""
        return 1

    @property
    def unrepeatable(self) -> str:
        """The state and the random operations of a TensorFlow Lite model are unknown, so no model is repeatable."""
        return "the server does not examine TensorFlow Lite models for state and random operations"

    @property
    def never_blocks(self) -> bool:
        """Whether a run only computes: no, because another run may hold the interpreters."""
        return False

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature. Blocks until an interpreter is free and the run has ended.

        Raises:
            InvalidArgument: LiteRT refused the inputs' shapes, or the run failed.
        """
        model = self._take()
        try:
            return _Done(model.run(signature_name, inputs, output_names))
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


@dataclass(frozen=True, slots=True)
class _Done:
    """Completed run."""

    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs
