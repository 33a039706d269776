"""What can be asked: a source, or what was written of it, however it is loaded."""

from typing import Protocol, runtime_checkable

from tpuserve_exporter.signature import Signature, Tensors


class Runnable(Protocol):
    """Anything that answers a signature's inputs with its outputs."""

    def run(self, signature: Signature, inputs: Tensors) -> Tensors: ...


class Sampled(Runnable, Protocol):
    """A model that inputs can be made up for: it refuses those it cannot take, and tells what its parsers want."""

    def make_examples(self, count: int, longest: int) -> list[bytes]: ...


@runtime_checkable
class Releasable(Protocol):
    """A source that can give its weights' memory back, and cannot be asked any more then."""

    def release(self) -> None: ...
