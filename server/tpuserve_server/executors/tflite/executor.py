"""Runs TensorFlow Lite models on the CPU with LiteRT (`ai-edge-litert`, the extra `tflite`)."""

import importlib.metadata
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.servable import InFlight, VersionFiles
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tflite.model import TfliteModel
from tpuserve_server.executors.tflite.options import TfliteOptions

MODEL_FILE = "model.tflite"


class TfliteExecutor:
    """Loads `model.tflite`. Safe to use from several loading threads; keeps no state between loads."""

    def __init__(self, options: TfliteOptions) -> None:
        """Nothing is loaded yet."""
        self._options = options

    def load(self, servable_id: ServableId, version: VersionFiles) -> "TfliteServable":
        """Load `model.tflite`; its kernels are its own, whatever the exporter has checked.

        Raises:
            InvalidArgument: it is no model, or needs an operation that LiteRT does not have.
        """
        try:
            # Not by its path: LiteRT would map the file, and a version that is written over would change under it.
            content = (version.path / MODEL_FILE).read_bytes()
        except OSError as error:
            raise InvalidArgument(f"{MODEL_FILE} cannot be read: {error.strerror}") from error
        if not content:
            raise InvalidArgument(f"{MODEL_FILE} is empty")
        return TfliteServable(content, self._options)


class TfliteServable:
    """A model and its interpreters. `dispatch` runs at once, in the thread that calls.

    An interpreter serves one thread at a time. The one that was free last is taken, so that it stays warm; another is
    made when all are busy, up to the limit. `_free` and `_made` are guarded by `_changed`.
    """

    def __init__(self, content: bytes, options: TfliteOptions) -> None:
        """From the model file's `content`. Raises InvalidArgument as TfliteModel."""
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
        """What it runs on, for people."""
        return f"CPU (LiteRT {importlib.metadata.version('ai-edge-litert')})"

    @property
    def max_in_flight(self) -> int:
        """One: a run ends in `dispatch`."""
        return 1

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature; blocks until done, and before that until an interpreter is free.

        Raises:
            InvalidArgument: LiteRT refused the inputs' shapes, or the run failed.
        """
        model = self._take()
        try:
            return _Done(model.run(signature_name, inputs, output_names))
        finally:
            self._give_back(model)

    def close(self) -> None:
        """Let go of the interpreters and their memory."""
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
    """A run that has ended."""

    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs
