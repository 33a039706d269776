"""JAX functions in TensorFlow: StableHLO for CPU and TPU within a graph, and parameters as variables."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import BuilderFailed, CannotLower, reason_of
from tpuserve_exporter.models.bucketed_function import BucketedFunction, TensorFunction
from tpuserve_exporter.models.jax_function import JaxFunction, JaxInput
from tpuserve_exporter.models.jax_rows import Operations, goes_by_rows, list_operations
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.models.tree_path import variable_name
from tpuserve_exporter.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf

PLATFORMS = ("cpu", "tpu")
# Calling convention version of modules in the graph. TensorFlow reads JAX's default, 10, since 2.20, and 9 for longer.
_MODULE_VERSION = 9
# Dtypes of less than a byte: TensorFlow makes such variables, but sessions restore wrong values into them.
_PACKED = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})
# The smallest accepted row limit: the checks need several rows in one request.
_LEAST_ROWS = 4


@dataclass(frozen=True, slots=True)
class ServedJax:
    """A JAX function in TensorFlow. `compute_dtype` is the name of a Keras policy, and `notes` are for the user.

    `source` is the original function, with shapes instead of parameters.
    """

    function: ServedFunction
    source: JaxFunction
    compute_dtype: str
    notes: tuple[str, ...] = ()


def serve_jax(function: JaxFunction, variables: "Variables", batch_sizes: tuple[int, ...]) -> ServedJax:
    """Convert a JAX function to a served function of any number of rows.

    If JAX cannot lower a free number of rows, the result has a program for each batch size. `variables` are the
    function's parameters. Raises BuilderFailed if the function fails for its inputs, and CannotLower if JAX cannot
    lower it for CPU and TPU.
    """
    specs = {name: one.spec(name) for name, one in function.inputs.items()}
    module, refusal = _try_free_rows(function, batch_sizes) if function.batched else (_lower(function), "")
    if module is not None:
        served = ServedFunction(specs, _convert(function, variables), [variables.module])
        return ServedJax(served, _shapes_alone(function), compute_dtype_of(module))
    module = _lower(_sized(function, batch_sizes[0]))
    sizes = (*batch_sizes, _LEAST_ROWS) if max(batch_sizes) < _LEAST_ROWS else batch_sizes
    sized = {rows: _convert(_sized(function, rows), variables) for rows in sizes}
    served = ServedFunction(specs, BucketedFunction(sized, function.batched), [variables.module])
    note = (
        f"JAX cannot leave the number of rows free ({refusal}). The version has a program for each of the batch "
        f"sizes {', '.join(map(str, sizes))}, and a request can have at most {max(sizes)} rows"
    )
    return ServedJax(served, _shapes_alone(function), compute_dtype_of(module), (note,))


def _shapes_alone(function: JaxFunction) -> JaxFunction:
    """Replace the parameters by their shapes, so that the result does not keep them in memory."""
    import jax

    shapes = {name: jax.ShapeDtypeStruct(np.shape(value), value.dtype) for name, value in function.params.items()}
    return replace(function, params=shapes)


class Variables:
    """TensorFlow variables by name, which `module` holds."""

    def __init__(self, values: Iterable[tuple[str, Array]]) -> None:
        """Copy the values one at a time, to save memory. Raises CannotLower for a dtype that TensorFlow lacks."""
        import tensorflow as tf

        self._by_name = {name: _make_variable(name, value) for name, value in values}
        self.module = tf.Module()
        self.module.parameters = list(self._by_name.values())

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "Variables":
        """Make variables of parameters that stay in memory."""
        return cls((name, np.asarray(value)) for name, value in params.items())

    def tensors(self) -> "dict[str, tf.Variable]":
        return dict(self._by_name)

    def arrays(self) -> dict[str, Any]:
        """Return read-only JAX arrays. They share memory with the variables, except float8 and 64-bit dtypes.

        JAX converts 64-bit dtypes to 32 bits.
        """
        return {name: _share(variable) for name, variable in self._by_name.items()}


def _make_variable(name: str, value: Array) -> "tf.Variable":
    import tensorflow as tf

    refusal = CannotLower(
        f"parameter {name} is {value.dtype.name}{list(value.shape)}, but TensorFlow has no variables of that dtype. "
        "Use a wider dtype for the parameter, and cast it in the function"
    )
    if value.dtype.name in _PACKED:
        raise refusal
    try:
        return tf.Variable(value, name=variable_name(name), trainable=False)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise refusal from error


def _share(variable: "tf.Variable") -> Any:  # noqa: ANN401 - jax has no types here
    import jax
    import jax.numpy as jnp
    import tensorflow as tf

    try:
        return jax.dlpack.from_dlpack(variable.read_value())
    except tf.errors.InvalidArgumentError:  # TensorFlow does not share float8.
        return jnp.asarray(variable.numpy())


def _sized(function: JaxFunction, rows: int) -> JaxFunction:
    return replace(function, inputs={name: one.sized(rows) for name, one in function.inputs.items()})


def _convert(function: JaxFunction, variables: Variables) -> TensorFunction:
    from jax.experimental import jax2tf

    shapes = [None, {name: one.polymorphic_shape() for name, one in function.inputs.items()}]
    converted = jax2tf.convert(
        function.call, polymorphic_shapes=shapes, with_gradient=False, native_serialization_platforms=PLATFORMS
    )

    def call(**inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        with _module_version():
            outputs: Mapping[str, tf.Tensor] = converted(variables.tensors(), inputs)
        return outputs

    return call


@contextlib.contextmanager
def _module_version() -> Iterator[None]:
    import jax

    before = jax.config.jax_export_calling_convention_version
    jax.config.update("jax_export_calling_convention_version", _MODULE_VERSION)
    try:
        yield
    finally:
        jax.config.update("jax_export_calling_convention_version", before)


def _try_free_rows(function: JaxFunction, batch_sizes: tuple[int, ...]) -> tuple[str | None, str]:
    """Return the module's text with free dimensions, or None and the reason that JAX cannot lower it."""
    try:
        if not function.traced and goes_by_rows(lambda rows: _operations(_sized(function, rows)), batch_sizes):
            return None, "the model's code depends on the number"
        return _export(function), ""
    except Exception as error:  # a user's code given symbols for sizes may raise anything
        return None, f"{type(error).__name__}: {reason_of(error)}"


def _lower(function: JaxFunction) -> str:
    """Return the module's text. Raises BuilderFailed or CannotLower."""
    try:
        return _export(function)
    except NotImplementedError as error:
        raise CannotLower(
            f"JAX cannot lower the model for {' and '.join(PLATFORMS)}: {reason_of(error)}. Build the model without it"
        ) from error
    except Exception as error:  # the user's code
        inputs = ", ".join(f"{name}: {one}" for name, one in function.inputs.items())
        raise BuilderFailed(f"the model fails for {inputs}: {type(error).__name__}: {reason_of(error)}") from error


def _operations(function: JaxFunction) -> Operations:
    return list_operations(function.call, _shapes_alone(function).params, _abstract_inputs(function))


def _export(function: JaxFunction) -> str:
    import jax
    from jax import export

    params, inputs = _shapes_alone(function).params, _abstract_inputs(function)
    return str(export.export(jax.jit(function.call), platforms=PLATFORMS)(params, inputs).mlir_module())


def _abstract_inputs(function: JaxFunction) -> Mapping[str, Any]:
    from jax import export

    scope = export.SymbolicScope()
    return {name: _abstract(one, scope) for name, one in function.inputs.items()}


def _abstract(one: JaxInput, scope: Any) -> Any:  # noqa: ANN401 - jax has no types here
    import jax
    from jax import export

    shape = export.symbolic_shape(one.polymorphic_shape(), scope=scope)
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(one.dtype))


def compute_dtype_of(module: str) -> str:
    """Return the name of the Keras policy that matches the dtypes in a module's text."""
    if not re.search(r"\bbf16>|xbf16>", module):
        return "float32"
    return "mixed_bfloat16" if "f32>" in module else "bfloat16"
