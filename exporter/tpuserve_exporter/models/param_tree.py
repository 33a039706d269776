"""The parameters of a JAX model: arrays by name, and the tree that the model's function takes."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.jax_function import PyTree
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames, flatten, keys_of

if TYPE_CHECKING:
    import jax

Scalar: TypeAlias = bool | int | float | complex
# Kinds of numpy dtypes that hold numbers. Dtypes of ml_dtypes have kind V and a name.
_NUMBERS = "biufc"


@dataclass(frozen=True, slots=True)
class ParamTree:
    """The structure of a tree: the shapes of its arrays, by name in its order, and the keys of arrays and scalars.

    `scalars` are Python numbers. The function gets them unchanged, because it may size arrays by them. `_fixed` are
    leaves without numbers, such as activation functions and strings. Random keys are arrays of their raw data, and
    `_key_kinds` names their implementations.
    """

    shapes: Mapping[str, Any]
    paths: Mapping[str, KeyPath]
    scalars: Mapping[str, Scalar]
    _names: tuple[str, ...]
    _treedef: Any
    _fixed: Mapping[str, Any] = field(default_factory=dict)
    _key_kinds: Mapping[str, str] = field(default_factory=dict)

    def with_scalars(self, scalars: Mapping[str, Scalar]) -> "ParamTree":
        """Return the same tree with other scalars."""
        return replace(self, scalars={**self.scalars, **scalars})

    def rebuild(self, arrays: Mapping[str, Any]) -> PyTree:
        """Return the tree with these arrays or tracers."""
        import jax

        values = {**self._fixed, **self.scalars, **arrays}
        for name, kind in self._key_kinds.items():
            values[name] = jax.random.wrap_key_data(values[name], impl=kind)
        return jax.tree_util.tree_unflatten(self._treedef, [values[name] for name in self._names])


def read_tree(tree: PyTree, live: bool) -> tuple[ParamTree, dict[str, Any]]:
    """Return the structure of a tree, and its arrays by name. The arrays of a `live` tree must have values.

    Raises BuilderFailed for a leaf that cannot be served, and names it.
    """
    import jax

    leaves = [(keys_of(path), f"params{jax.tree_util.keystr(path)}", leaf) for path, leaf in flatten(tree)]
    names = TreeNames(keys for keys, _, _ in leaves)
    named = {names.name(keys): _read_leaf(leaf, printed, live) for keys, printed, leaf in leaves}
    arrays = {name: leaf.value for name, leaf in named.items() if leaf.kind in ("array", "keys")}
    structure = ParamTree(
        {name: jax.ShapeDtypeStruct(np.shape(value), value.dtype) for name, value in arrays.items()},
        {name: keys for keys, _, _ in leaves if named[name := names.name(keys)].kind != "fixed"},
        {name: leaf.value for name, leaf in named.items() if leaf.kind == "scalar"},
        tuple(named),
        jax.tree_util.tree_structure(tree),
        {name: leaf.value for name, leaf in named.items() if leaf.kind == "fixed"},
        {name: leaf.key_kind for name, leaf in named.items() if leaf.kind == "keys"},
    )
    return structure, arrays


@dataclass(frozen=True, slots=True)
class _Leaf:
    kind: Literal["array", "scalar", "keys", "fixed"]
    value: Any
    key_kind: str = ""


def _read_leaf(leaf: Any, name: str, live: bool) -> _Leaf:  # noqa: ANN401 - whatever a tree holds
    import jax

    leaf = _as_shape(leaf)
    if live and isinstance(leaf, jax.ShapeDtypeStruct):
        raise BuilderFailed(f"{name} is a shape without a value. Pass the trained parameters")
    if isinstance(leaf, Scalar) and not isinstance(leaf, np.generic):
        return _Leaf("scalar", leaf)
    if isinstance(leaf, jax.Array):
        _check_alive(leaf, name)
    if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array):
        return _read_keys(leaf, name) if _is_random_key(leaf) else _read_array(leaf)
    if isinstance(leaf, np.ndarray | np.generic) and _holds_numbers(leaf.dtype):
        return _Leaf("array", leaf)
    if hasattr(leaf, "__array__") and _holds_numbers((value := np.asarray(leaf)).dtype):
        return _Leaf("array", value)  # of another framework
    _check_opaque(leaf, name)
    return _Leaf("fixed", leaf)


def _as_shape(leaf: Any) -> Any:  # noqa: ANN401 - whatever a tree holds
    """Convert a shape and dtype of another library, such as Orbax' metadata, to JAX's. Others stay unchanged."""
    import jax

    if isinstance(leaf, jax.Array | np.ndarray | np.generic) or hasattr(leaf, "__array__"):
        return leaf
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None or isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    except TypeError:
        return leaf


def _check_alive(leaf: "jax.Array", name: str) -> None:
    """Raise BuilderFailed if this process cannot read all values of the array."""
    import jax

    if isinstance(leaf, jax.core.Tracer):
        raise BuilderFailed(
            f"{name} is a tracer, {leaf.aval.str_short()}. Export outside of jax.jit, jax.grad and jax.vmap"
        )
    if leaf.is_deleted():
        raise BuilderFailed(
            f"{name} is deleted, which happens to an argument donated to a jitted function. Pass the function's result"
        )
    if not leaf.is_fully_addressable:
        raise BuilderFailed(
            f"parts of {name} are on devices of other processes. Gather it first with "
            "jax.experimental.multihost_utils.process_allgather(params, tiled=True)"
        )


def _read_array(leaf: Any) -> _Leaf:  # noqa: ANN401 - jax has no types here
    """Read an array. An array on several devices becomes a numpy array, without the mesh in its type."""
    import jax

    if not isinstance(leaf, jax.Array):
        return _Leaf("array", leaf)
    if leaf.weak_type and leaf.ndim == 0:
        return _Leaf("scalar", leaf.item())  # JAX promotes it like a Python number
    return _Leaf("array", np.asarray(leaf) if len(leaf.devices()) > 1 else leaf)


def _is_random_key(leaf: Any) -> bool:  # noqa: ANN401 - jax has no types here
    import jax

    return bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _read_keys(leaf: Any, name: str) -> _Leaf:  # noqa: ANN401 - jax has no types here
    """Read random keys as raw data. Keys of an abstract tree must have JAX's default implementation."""
    import jax

    if isinstance(leaf, jax.Array):
        return _Leaf("keys", jax.random.key_data(leaf), str(jax.random.key_impl(leaf)))
    default = jax.random.key(0)
    if leaf.dtype != default.dtype:
        raise BuilderFailed(f"{name} is a random key, {leaf.dtype}, without a value. Pass its jax.random.key_data")
    return _Leaf("keys", jax.eval_shape(jax.random.key_data, leaf), str(jax.random.key_impl(default)))


def _holds_numbers(dtype: "np.dtype[Any]") -> bool:
    """Return whether the dtype is a number of numpy or of ml_dtypes (kind V without fields)."""
    return dtype.kind in _NUMBERS or (dtype.kind == "V" and dtype.names is None and not dtype.name.startswith("void"))


def _check_opaque(leaf: object, name: str) -> None:
    """Raise BuilderFailed for an object that holds arrays and that JAX treats as one leaf."""
    import jax

    if isinstance(leaf, type) or inspect.isroutine(leaf):
        return
    slots = (one for base in type(leaf).__mro__ for one in getattr(base, "__slots__", ()))
    attributes = {**{one: getattr(leaf, one, None) for one in slots}, **getattr(leaf, "__dict__", {})}
    arrays = [
        one for one, value in attributes.items()
        if any(hasattr(part, "shape") and hasattr(part, "dtype") for part in jax.tree.leaves(value))
    ]  # fmt: skip
    if arrays:
        raise BuilderFailed(
            f"{name} is a {type(leaf).__qualname__} with arrays ({', '.join(arrays)}), and JAX does not know this "
            "class. Register it with jax.tree_util.register_dataclass, or pass its arrays in a dictionary"
        )
