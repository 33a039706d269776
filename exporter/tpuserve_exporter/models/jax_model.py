"""The builder's JAX model: an apply function with its parameters' shapes, a Flax linen module, or an NNX one."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tpuserve_exporter.errors import BuilderFailed, ExportError, OptionConflict, reason_of
from tpuserve_exporter.models.builder import builder_failure, check_arguments, describe_type, find_builder
from tpuserve_exporter.models.jax_advice import CACHE, advise
from tpuserve_exporter.models.jax_function import TRIED_LENGTH, JaxInput, PyTree
from tpuserve_exporter.models.naming import check_names, name_outputs
from tpuserve_exporter.models.nnx_state import refuse_state
from tpuserve_exporter.models.param_tree import ParamTree, read_tree
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions

if TYPE_CHECKING:
    from flax import linen, nnx


# Common names of arguments that switch a model to evaluation mode.
_EVALUATION: Mapping[str, bool] = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
# Functions of Haiku's `transform` take this random key before their inputs. None disables randomness.
_RANDOM = "rng"


@dataclass(frozen=True, slots=True)
class CallShape:
    """The way to call a function. `switches` are keyword arguments that put it into evaluation mode."""

    how: Literal["by keyword", "in order", "as a dictionary"]
    switches: Mapping[str, bool | None]

    @classmethod
    def of(cls, function: Callable[..., Any], names: Mapping[str, object], skip: int) -> "CallShape":
        """Choose how to call a function with `skip` arguments before its inputs.

        Raises OptionConflict if the inputs do not fit its parameters.
        """
        try:
            parameters = list(inspect.signature(function).parameters.values())[skip:]
        except (TypeError, ValueError):  # a callable written in C, such as numpy's own
            return cls("in order", {})
        switches: dict[str, bool | None] = {
            one.name: _EVALUATION[one.name] for one in parameters if one.name in _EVALUATION.keys() - names.keys()
        }
        if any(one.name == _RANDOM and one.default is one.empty for one in parameters) and _RANDOM not in names:
            switches[_RANDOM] = None
        taken = [one for one in parameters if one.name not in switches and one.kind is not one.VAR_POSITIONAL]
        keywords = {one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        anything = any(one.kind is one.VAR_KEYWORD for one in taken)
        needed = [one for one in taken if one.kind is not one.VAR_KEYWORD and one.default is one.empty]
        if (names.keys() <= keywords or anything) and {one.name for one in needed} <= names.keys():
            return cls("by keyword", switches)
        positional = [one for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        if len(needed) <= len(names) <= len(positional):
            return cls("in order", switches)
        if len(needed) == 1:
            return cls("as a dictionary", switches)
        raise OptionConflict(
            f"the model takes {', '.join(one.name for one in taken) or 'nothing'}, but --input names "
            f"{', '.join(names)}. Use --input for every array. Set other arguments in the builder: return (apply_fn, "
            "params), such as (lambda params, x: apply_fn(params, x, layers=2), params)"
        )

    def call(self, function: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the user's
        """Call `function` without the skipped arguments."""
        if self.how == "by keyword":
            return function(**inputs, **self.switches)
        if self.how == "in order":
            return function(*inputs.values(), **self.switches)
        return function(dict(inputs), **self.switches)


_RETURNS = "(apply_fn, abstract_params), a Flax module, or a function without arguments that makes an NNX module"
# Number of rows during shape inference of the parameters.
_ROWS = 1
# Collections that linen modules write during a call and do not read.
_CACHE = "cache"
_NOT_PARAMETERS = ("intermediates", "losses", "summaries")


@dataclass(frozen=True, slots=True)
class JaxModel:
    """A model as `call(params, inputs)`, which takes the parameters as a tree and returns a dictionary.

    `tree` is the structure of the parameters. `arrays` holds its arrays by name: values of a live model, else shapes.
    """

    call: Callable[[PyTree, Mapping[str, Any]], Mapping[str, Any]]
    tree: ParamTree
    arrays: Mapping[str, Any]

    def by_name(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]:
        """Return a function like `call` that takes the parameters by name."""
        call, tree = self.call, self.tree
        return lambda arrays, inputs: call(tree.rebuild(arrays), inputs)


def read_inputs(options: ModelOptions) -> dict[str, JaxInput]:
    """Read the inputs from --input. JAX models do not declare theirs, so this raises OptionConflict without --input."""
    if not options.inputs or any(naming.dims is None for naming in options.inputs):
        raise OptionConflict(
            "the inputs of a JAX model are unknown. Describe each with --input 'name:dtype[batch,...]', such as "
            "--input 'image:float32[batch,8,8,1]'"
        )
    check_names([naming.name for naming in options.inputs])
    return {naming.name: _read_input(naming) for naming in options.inputs}


def _read_input(naming: InputNaming) -> JaxInput:
    import jax.numpy as jnp

    try:
        dtype = jnp.dtype(naming.dtype).name
    except TypeError as error:
        raise OptionConflict(f"--input {naming.name}: JAX has no dtype {naming.dtype!r}") from error
    dims = naming.dims or ()
    named = [
        dim if not isinstance(dim, str) or dim.isidentifier() else f"{naming.name}_{i}" for i, dim in enumerate(dims)
    ]
    return JaxInput(dtype, tuple(named))


def build_jax_model(name: str, options: ModelOptions, inputs: Mapping[str, JaxInput]) -> JaxModel:
    """Call the builder. Raises BuilderFailed."""
    built = _build(name, options.builder_args)
    call, params = _understand(name, built, inputs, options.sequences.longest)

    def run(params: PyTree, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return _name_outputs(call(params, inputs), options.outputs)

    return JaxModel(run, *read_tree(params, live=False))


def _build(name: str, args: Mapping[str, object]) -> object:
    from flax import linen, nnx

    function = find_builder(name)
    check_arguments(name, function, args)
    try:
        built = function(**args)
        if callable(built) and not isinstance(built, linen.Module | nnx.Module | type):
            return nnx.eval_shape(built)
    except Exception as error:  # the user's code
        raise builder_failure(name, error) from error
    return built


def _understand(
    name: str, built: object, inputs: Mapping[str, JaxInput], longest: int | None
) -> tuple[Callable[[PyTree, Mapping[str, Any]], Any], PyTree]:
    from flax import linen, nnx

    if isinstance(built, nnx.Module):
        return _from_nnx(built, inputs)
    if isinstance(built, linen.Module):
        return _from_linen(name, built, inputs, longest)
    if isinstance(built, type) and issubclass(built, linen.Module | nnx.Module):
        raise BuilderFailed(f"{name} returned the class {built.__name__}. Return an instance, {built.__name__}(...)")
    if isinstance(built, tuple) and len(built) == 2 and callable(built[0]):
        apply = built[0]
        if isinstance(apply, linen.Module) or (isinstance(apply, type) and issubclass(apply, linen.Module)):
            raise BuilderFailed(f"{name} returned a module in place of its function. Return (module.apply, params)")
        shape = CallShape.of(apply, inputs, skip=1)
        return (lambda params, inputs: shape.call(lambda *a, **k: apply(params, *a, **k), inputs)), built[1]
    kind = describe_type(built)
    hint = ". Save a Keras model on JAX as a .keras file, and export that file" if "keras" in kind else ""
    raise BuilderFailed(f"{name} returned {kind}. A builder for a JAX checkpoint returns {_RETURNS}{hint}")


def _check_pair(model: tuple[Any, ...]) -> None:
    """Raise BuilderFailed unless the tuple is a function with its parameters."""
    if len(model) == 2 and callable(model[0]):
        return
    named = [one for one in ("apply", "__call__") if model and callable(getattr(model[0], one, None))]
    hint = f". The first has a function {named[0]}. Use ({named[0]}, params)" if named else ""
    raise BuilderFailed(
        f"a tuple of {', '.join(map(describe_type, model)) or 'nothing'} is not the (apply_fn, params) of a JAX "
        f"model{hint}"
    )


def understand_live(model: object, options: ModelOptions, inputs: Mapping[str, JaxInput]) -> JaxModel:
    """Read a live model of this process. An NNX module keeps its mode.

    Raises BuilderFailed, which names the leaf of an unfit parameter.
    """
    from flax import nnx

    if isinstance(model, nnx.Module):
        copied = nnx.merge(*nnx.split(model))
        call, _ = _from_nnx(copied, inputs)
        params = nnx.to_pure_dict(nnx.state(copied, nnx.All(nnx.Not(nnx.RngState), nnx.Not(nnx.Intermediate))))
    elif isinstance(model, tuple):
        _check_pair(model)
        call, params = _understand("the model", model, inputs, options.sequences.longest)
    else:
        raise BuilderFailed(f"a {type(model).__name__} has no parameters. Use (module.apply, params)")

    def run(params: PyTree, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return _name_outputs(call(params, inputs), options.outputs)

    return JaxModel(run, *read_tree(params, live=True))


def _from_linen(
    name: str, module: "linen.Module", inputs: Mapping[str, JaxInput], longest: int | None
) -> tuple[Callable[[PyTree, Mapping[str, Any]], Any], PyTree]:
    import jax
    from flax.core import meta, unfreeze

    shape = CallShape.of(type(module).__call__, inputs, skip=1)

    def init(key: Any, arrays: Mapping[str, Any]) -> Any:  # noqa: ANN401 - jax has no types here
        return shape.call(lambda *a, **k: module.init({"params": key, "dropout": key}, *a, **k), arrays)

    length = min(TRIED_LENGTH, longest or TRIED_LENGTH)
    fixed = {one: spec.sized(_ROWS, length) for one, spec in inputs.items()}
    shapes = {one: jax.ShapeDtypeStruct(spec.dims, spec.dtype) for one, spec in fixed.items()}
    try:
        variables = unfreeze(meta.unbox(jax.eval_shape(init, jax.random.key(0), shapes)))
    except ExportError:
        raise
    except Exception as error:  # the user's code
        raise BuilderFailed(
            f"{name}: the module fails for {_describe(fixed)}: {type(error).__name__}: "
            f"{reason_of(error).rstrip('.')}{advise(error)}"
        ) from error
    if _CACHE in variables:
        raise BuilderFailed(f"{name}: the module changes its collection '{_CACHE}' in each call (decode=True). {CACHE}")
    params = {collection: tree for collection, tree in variables.items() if collection not in _NOT_PARAMETERS}
    return (lambda params, arrays: shape.call(lambda *a, **k: module.apply(params, *a, **k), arrays)), params


def _from_nnx(
    module: "nnx.Module", inputs: Mapping[str, JaxInput]
) -> tuple[Callable[[PyTree, Mapping[str, Any]], Any], PyTree]:
    """Return the call of an NNX module in evaluation mode, and the shapes of its parameters, without random keys."""
    import jax
    from flax import nnx

    module.eval()
    shape = CallShape.of(type(module).__call__, inputs, skip=1)
    graph, state, rest = nnx.split(module, nnx.All(nnx.Not(nnx.RngState), nnx.Not(nnx.Intermediate)), ...)
    refuse_state(shape.call, module, {name: one.sized(_ROWS, TRIED_LENGTH) for name, one in inputs.items()})

    def call(params: PyTree, arrays: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever the model returns
        filled = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(filled, params)
        return shape.call(nnx.merge(graph, filled, jax.tree.map(_blank, rest)), arrays)

    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), nnx.to_pure_dict(state))
    return call, params


def _blank(leaf: Any) -> Any:  # noqa: ANN401 - an array or its shape, of any dtype
    """Return a placeholder for a random key or its count."""
    import jax
    import jax.numpy as jnp

    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
    return jnp.zeros(leaf.shape, leaf.dtype)


def _describe(inputs: Mapping[str, JaxInput]) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in inputs.items())


def _name_outputs(outputs: object, chosen: Sequence[str]) -> dict[str, Any]:
    """Name the outputs by --output in order, or else by the keys of a dictionary.

    Other single arrays are `outputs`, and several are `output_0`, `output_1` and so on.
    """
    import jax
    import jax.numpy as jnp

    leaves = jax.tree_util.tree_leaves_with_path(outputs)
    names = list(chosen) or [_output_name(path, index, len(leaves)) for index, (path, _) in enumerate(leaves)]
    return name_outputs(names, [jnp.asarray(leaf) for _, leaf in leaves])


def _output_name(path: tuple[Any, ...], index: int, count: int) -> str:
    import jax

    named = path and isinstance(path[0], jax.tree_util.DictKey | jax.tree_util.GetAttrKey)
    if named:
        return str(jax.tree_util.keystr(path, simple=True, separator="_"))
    return "outputs" if count == 1 else f"output_{index}"
