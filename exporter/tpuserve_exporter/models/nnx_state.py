"""Refuses NNX modules whose answers depend on what changes between calls: random keys, caches and counters."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, TrainingMode
from tpuserve_exporter.models.jax_advice import CACHE
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.models.tree_path import TreeNames, flatten, keys_of

if TYPE_CHECKING:
    from flax import nnx

_STATELESS = "A version keeps no state between requests"


def refuse_state(
    call: Callable[[Any, Mapping[str, Any]], Any], module: "nnx.Module", inputs: Mapping[str, JaxInput]
) -> None:
    """Raise BuilderFailed for a cache, and TrainingMode if outputs depend on random keys or on changed variables.

    A version would use the same random numbers for every request. `inputs` have fixed sizes. Code that fails is not
    judged here, because its error is explained elsewhere.
    """
    import jax
    from flax import nnx

    if jax.tree.leaves(nnx.state(module, nnx.Cache)):
        raise BuilderFailed(f"the module has variables of nnx.Cache (decode=True), which each call changes. {CACHE}")
    kept = nnx.All(nnx.Not(nnx.RngState), nnx.Not(nnx.Intermediate))
    graph, state, keys, rest = nnx.split(module, kept, nnx.RngKey, ...)
    names = [name.removesuffix("/value") for name in _names(state)]

    def run(state: Any, keys: Any, arrays: Mapping[str, Any]) -> Any:  # noqa: ANN401 - NNX has no types here
        merged = nnx.merge(graph, state, keys, jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), rest))
        outputs = call(merged, arrays)
        after = dict(zip(_names(one := nnx.state(merged, kept)), jax.tree.leaves(one), strict=True))
        return [after[name] for name in _names(state)], outputs

    shapes = {name: jax.ShapeDtypeStruct(one.dims, one.dtype) for name, one in inputs.items()}
    try:
        traced = jax.make_jaxpr(run)(state, keys, shapes).jaxpr
    except Exception:  # the user's code
        return
    used = _used(traced, skipped=len(names))
    changed = [
        name
        for name, before, after, is_used in zip(names, traced.invars, traced.outvars, used, strict=False)
        if is_used and before is not after
    ]
    if changed:
        raise TrainingMode(
            f"the module changes {', '.join(changed)} in each call, and its answers depend on it. {_STATELESS}. Remove "
            "the change from the served module, or take the value as an input"
        )
    random = [name for name, is_used in zip(_names(keys), used[len(names) :], strict=False) if is_used]
    if random:
        raise TrainingMode(
            f"the module draws random numbers ({', '.join(random)}). {_STATELESS}, so that it would draw the same for "
            "every request. Return the mean, or take the random numbers as an input"
        )


def _names(state: Any) -> list[str]:  # noqa: ANN401 - NNX has no types here
    paths = [keys_of(path) for path, _ in flatten(state)]
    names = TreeNames(paths)
    return [names.name(path) for path in paths]


def _used(traced: Any, skipped: int) -> list[bool]:  # noqa: ANN401 - JAX has no types here
    """Return for each argument whether a result depends on it, except for the first `skipped` results."""
    from jax.interpreters import partial_eval

    wanted = [position >= skipped for position in range(len(traced.outvars))]
    _, used = partial_eval.dce_jaxpr(traced, wanted)
    return list(used)
