"""The runs of a graph: the initialisation, and each signature. Read from a MetaGraphDef without its graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tpuserve_formats.messages.official import MetaGraphDef, TensorInfo
from tpuserve_formats.safety.reach import with_index

_INIT_SIGNATURE: Final = "__saved_model_init_op"
_INIT_COLLECTIONS: Final = ("saved_model_main_op", "legacy_init_op")
_INTERNAL: Final = "__saved_model_"


@dataclass(frozen=True, slots=True)
class SignatureRun:
    """The tensors that a request feeds, as `node:0`, and those that it fetches."""

    fed: frozenset[str]
    fetched: tuple[str, ...]


def signatures(rest: MetaGraphDef) -> dict[str, SignatureRun]:
    """Return the runs of the callable signatures, by name."""
    return {
        name: SignatureRun(
            frozenset(with_index(tensor) for one in signature.inputs.values() for tensor in _tensors(one)),
            tuple(tensor for one in signature.outputs.values() for tensor in _tensors(one)),
        )
        for name, signature in rest.signature_def.items()
        if not name.startswith(_INTERNAL)
    }


def _tensors(info: TensorInfo) -> Iterator[str]:
    """Yield the names of a tensor, or of the parts of a sparse or ragged one."""
    sparse = info.coo_sparse
    yield from filter(None, (info.name, sparse.values_tensor_name, sparse.indices_tensor_name))
    yield from filter(None, (sparse.dense_shape_tensor_name,))
    for component in info.composite_tensor.components:
        yield from _tensors(component)


def initialisers(rest: MetaGraphDef) -> Iterator[str]:
    """Yield the roots of the initialisation. A loader runs at most one of them (cc/saved_model/loader_util.cc)."""
    if _INIT_SIGNATURE in rest.signature_def:
        yield from (target(one.name) for one in rest.signature_def[_INIT_SIGNATURE].outputs.values())
    for name in _INIT_COLLECTIONS:
        if name in rest.collection_def:
            yield from map(target, rest.collection_def[name].node_list.value)


def target(name: str) -> str:
    """Return the root for a node that is run, whatever is fed."""
    return f"^{name.partition(':')[0]}" if name else ""
