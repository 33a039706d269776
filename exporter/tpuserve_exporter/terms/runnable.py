"""Interfaces of models that answer inputs: sources, and SavedModels written from them."""

from typing import Protocol, runtime_checkable

from tpuserve_exporter.terms.signature import Signature, Tensors


class Runnable(Protocol):
    """A model that computes a signature's outputs from its inputs."""

    def run(self, signature: Signature, inputs: Tensors) -> Tensors: ...


class Sampled(Runnable, Protocol):
    """A model that the exporter can make inputs for. It refuses bad inputs, and `make_examples` gives tf.Examples."""

    def make_examples(self, count: int, longest: int) -> list[bytes]: ...


@runtime_checkable
class Releasable(Protocol):
    """A source that can free the memory of its weights. It cannot answer after that."""

    def release(self) -> None: ...
