"""Signatures as a SavedModel states them: named inputs and outputs with dtype and shape. Models that answer them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo

# Any dtype: bfloat16 is not a numpy dtype, and strings are objects that hold bytes.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]

# TensorFlow's own bookkeeping signature, which servers do not serve.
_INIT_OP = "__saved_model_init_op"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Dtype and shape of one tensor.

    `dtype` is TensorFlow's name. `shape` is None for an unknown rank, and contains None for each free dimension.
    """

    dtype: str
    shape: tuple[int | None, ...] | None
    graph_name: str = ""
    # Names of the row splits, outermost first, if this is the values tensor of a ragged tensor.
    row_splits: tuple[str, ...] = ()

    @property
    def has_batch_dimension(self) -> bool:
        return self.shape is not None and len(self.shape) > 0 and self.shape[0] is None

    @property
    def free_axes(self) -> tuple[int, ...]:
        """Free dimensions, without the first one, which counts rows."""
        return tuple(axis for axis, size in enumerate(self.shape or ()) if axis > 0 and size is None)

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        ragged = f" ragged by {', '.join(self.row_splits)}" if self.row_splits else ""
        return f"{self.dtype}[{dims}]{ragged}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A callable part of a model."""

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]

    @property
    def is_batchable(self) -> bool:
        """Whether every input and output has a free first dimension, as the server requires of a batch.

        Row splits count from the first row of a request, so the server cannot concatenate those of two requests.
        """
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.has_batch_dimension for spec in specs) and not self.is_ragged

    @property
    def is_ragged(self) -> bool:
        return any(spec.row_splits for spec in (*self.inputs.values(), *self.outputs.values()))

    def with_row_splits(
        self, inputs: Mapping[str, tuple[str, ...]], outputs: Mapping[str, tuple[str, ...]]
    ) -> "Signature":
        """Return the same signature with row splits for these inputs and outputs."""
        return replace(self, inputs=_split(self.inputs, inputs), outputs=_split(self.outputs, outputs))

    @property
    def has_sequences(self) -> bool:
        """Whether a server that batches the signature can pad its inputs to sequence buckets."""
        return self.is_batchable and any(spec.free_axes for spec in self.inputs.values())

    def __str__(self) -> str:
        inputs = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
        outputs = ", ".join(f"{name}: {spec}" for name, spec in self.outputs.items())
        return f"{self.name}({inputs}) -> {outputs}"


def _split(specs: Mapping[str, TensorSpec], splits: Mapping[str, tuple[str, ...]]) -> dict[str, TensorSpec]:
    return {name: replace(spec, row_splits=splits.get(name, ())) for name, spec in specs.items()}


def read_signatures(signature_defs: "Mapping[str, SignatureDef]") -> dict[str, Signature]:
    """Return the signatures of a MetaGraphDef's `signature_def` for serving, by name."""
    return {
        name: Signature(name, _read_specs(definition.inputs), _read_specs(definition.outputs))
        for name, definition in sorted(signature_defs.items())
        if name != _INIT_OP
    }


def _read_specs(infos: "Mapping[str, TensorInfo]") -> dict[str, TensorSpec]:
    return {name: TensorSpec(_read_dtype(info), _read_shape(info), info.name) for name, info in sorted(infos.items())}


def _read_dtype(info: "TensorInfo") -> str:
    """Return the name of the dtype, or of the class of a composite tensor."""
    import tensorflow as tf

    if info.WhichOneof("encoding") == "composite_tensor":
        return info.composite_tensor.type_spec.type_spec_class_name.removesuffix("Spec") or "composite tensor"
    return "SparseTensor" if info.WhichOneof("encoding") == "coo_sparse" else str(tf.dtypes.as_dtype(info.dtype).name)


def _read_shape(info: "TensorInfo") -> tuple[int | None, ...] | None:
    if info.tensor_shape.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)


class Runnable(Protocol):
    """A model that computes a signature's outputs from its inputs."""

    def run(self, signature: Signature, inputs: Tensors) -> Tensors: ...


@runtime_checkable
class Releasable(Protocol):
    """A source that can free the memory of its weights. It cannot answer after that."""

    def release(self) -> None: ...
