"""JAX functions in TensorFlow: StableHLO for CPU and TPU within a graph, and parameters as variables."""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import BuilderFailed, CannotLower, ExportError, OptionConflict, reason_of
from tpuserve_exporter.models.bucketed_function import BucketedFunction, TensorFunction
from tpuserve_exporter.models.jax_advice import advise
from tpuserve_exporter.models.jax_function import TRIED_LENGTH, JaxFunction, JaxInput
from tpuserve_exporter.models.length_limits import find_limits
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.models.tree_path import variable_name
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf


# Detection of JAX functions whose Python code branches on the number of rows: `if rows % 2`, `if x.shape[0] == 4`.
#
# With a symbolic number of rows, JAX evaluates a comparison that it cannot decide to False. The server would then run
# one branch for all sizes. This module compares operations. Branches that differ only in constants show in the parity
# check.

Operations = tuple[str, ...]
# An odd size that few models test for. Together with powers of two it exposes `rows % 2`.
_ODD = 3
# Lengths that expose `length % 2` and `length % 16`. Few tables and windows have such a size.
_LENGTHS = (24, 25, 36, 48)


def goes_by_rows(operations_of: Callable[[int], Operations], batch_sizes: tuple[int, ...]) -> bool:
    """Return whether the function's operations change with the number of rows.

    A single row is not compared, because JAX broadcasts dimensions of size 1.
    """
    return len({operations_of(rows) for rows in {*batch_sizes, _ODD} if rows > 1}) > 1


def list_operations(
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]],
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> Operations:
    """List the function's operations for arguments of these shapes, in order, including nested functions and loops."""
    import jax

    return tuple(_walk(jax.jit(call).trace(params, inputs).jaxpr.jaxpr))


def _walk(jaxpr: Any) -> Iterator[str]:  # noqa: ANN401 - jax has no types here
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _walk(inner)


PLATFORMS = ("cpu", "tpu")
# Calling convention version of modules in the graph. TensorFlow reads JAX's default, 10, since 2.20, and 9 for longer.
_MODULE_VERSION = 9
# Dtypes of less than a byte: TensorFlow makes such variables, but sessions restore wrong values into them.
_PACKED = frozenset({"int2", "uint2", "int4", "uint4", "float4_e2m1fn"})
# Calls of functions that jaxlib has on CPUs, and TensorFlow lacks.
_LAPACK = re.compile(r"@lapack_(\w+?)(?:_ffi)?\b")
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


def serve_jax(
    function: JaxFunction, variables: "Variables", batch_sizes: tuple[int, ...], longest: int | None = None
) -> ServedJax:
    """Convert a JAX function to a served function of any number of rows and of any length within its limits.

    If JAX cannot lower free lengths, the result takes lengths up to `longest`, the largest sequence bucket. If JAX
    cannot lower a free number of rows, the result has a program for each batch size. `variables` are the function's
    parameters. Raises BuilderFailed if the function fails for its inputs, OptionConflict if `longest` is beyond its
    limits, and CannotLower if JAX cannot lower it for CPU and TPU.
    """
    function = _limit(function, batch_sizes[0], longest)
    bounded = [_bound(function, longest)] if longest is not None and function.lengths else []
    refusals = list[str]()
    for form in (function, *bounded) if function.batched else ():
        module, refusal = _try_free_rows(form, batch_sizes)
        if module is not None:
            notes = _note_length(form, longest, refusals) if longest is not None else _note_branches(form)
            return _serve(
                form, _convert(form, variables), variables, module, (*_note_limits(function, longest), *notes)
            )
        refusals.append(refusal)
    form, module, length_refusals = _lower_first([function, *bounded], batch_sizes[0], longest)
    notes = (*_note_limits(function, longest), *_note_length(form, longest, length_refusals))
    if not function.batched:
        return _serve(form, _convert(form, variables), variables, module, notes)
    sizes = (*batch_sizes, _LEAST_ROWS) if max(batch_sizes) < _LEAST_ROWS else batch_sizes
    sized = {rows: _convert(_sized(form, rows), variables) for rows in sizes}
    note = (
        f"JAX cannot leave the number of rows free ({refusals[-1]}). The version has a program for each of the batch "
        f"sizes {', '.join(map(str, sizes))}, and a request can have at most {max(sizes)} rows"
    )
    return _serve(form, BucketedFunction(sized, form.batched), variables, module, (*notes, note))


def _serve(
    function: JaxFunction, call: TensorFunction, variables: "Variables", module: str, notes: tuple[str, ...]
) -> ServedJax:
    if functions := sorted(set(_LAPACK.findall(module))):
        raise CannotLower(
            f"the model calls LAPACK ({', '.join(functions)}), which TensorFlow lacks, so that a server with a CPU has "
            "no answer. Linear algebra calls it, such as inv, solve, svd and cholesky. Compute what no input changes "
            "before the export, and the rest with other operations"
        )
    specs = {name: one.spec(name) for name, one in function.inputs.items()}
    served = ServedFunction(specs, call, [variables.module])
    return ServedJax(served, _shapes_alone(function), compute_dtype_of(module), notes)


def _limit(function: JaxFunction, rows: int, longest: int | None) -> JaxFunction:
    """Return the function with the limits of its tables of positions. Raises OptionConflict if `longest` exceeds one.

    A function that JAX cannot lower for free lengths keeps the limits that it has.
    """
    if not function.lengths:
        return function
    sized = _sized(function, rows)
    try:
        jaxpr, scope = _trace(sized)
        limited = function.limited(find_limits(jaxpr, scope, function.lengths))
    except Exception:  # a user's code given symbols for sizes may raise anything, and the lowering explains it
        limited = function
    for name, limit in limited.limits.items():
        if longest is not None and longest > limit:
            raise OptionConflict(
                f"--sequence-buckets {longest}: the model takes {name} only up to {limit}, the end of its table of "
                f"positions or a limit of its code. Use buckets up to {limit}"
            )
    return limited


def _bound(function: JaxFunction, longest: int) -> JaxFunction:
    return function.limited(dict.fromkeys(function.lengths, longest))


def _note_limits(function: JaxFunction, longest: int | None) -> tuple[str, ...]:
    """Describe the limits of the model itself. With sequence buckets, the user chose a limit within them."""
    if longest is not None:
        return ()
    return tuple(
        f"a request can have {name} up to {limit}: the model's table of positions ends there, or its code has this "
        "limit. The version refuses longer requests. --sequence-buckets sets the lengths that servers pad to, and a "
        "lower limit"
        for name, limit in function.limits.items()
    )


def _note_length(function: JaxFunction, longest: int | None, refusals: Sequence[str]) -> tuple[str, ...]:
    """Describe the bounded length of a function that JAX refused with a free one."""
    if longest is None or not function.lengths or not refusals:
        return ()
    return (
        f"JAX cannot leave {', '.join(function.lengths)} free ({refusals[0]}). A request can be at most {longest} "
        "long, the largest of --sequence-buckets",
    )


def _shapes_alone(function: JaxFunction) -> JaxFunction:
    """Replace the parameters by their shapes, so that the result does not keep them in memory."""
    import jax

    shapes = {name: jax.ShapeDtypeStruct(np.shape(value), value.dtype) for name, value in function.params.items()}
    return replace(function, params=shapes)


def _note_branches(function: JaxFunction) -> tuple[str, ...]:
    """Warn about Python code that branches on a length. JAX decides such a comparison once, for every length."""
    if function.traced or not function.lengths:
        return ()
    try:
        ways = {_operations(_sized(function, _ODD, length)) for length in _LENGTHS}
    except Exception:  # the user's code, which may not take these lengths
        return ()
    if len(ways) == 1:
        return ()
    return (
        f"the model's code depends on {', '.join(function.lengths)}, and the version may take one way for every "
        "length. List the lengths with --sequence-buckets: the export then compares each with the source",
    )


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


def _sized(function: JaxFunction, rows: int, length: int | None = None) -> JaxFunction:
    return replace(function, inputs={name: one.sized(rows, length) for name, one in function.inputs.items()})


def _convert(function: JaxFunction, variables: Variables) -> TensorFunction:
    from jax.experimental import jax2tf

    shapes = [None, {name: one.polymorphic_shape() for name, one in function.inputs.items()}]
    converted = jax2tf.convert(
        function.call,
        polymorphic_shapes=shapes,
        polymorphic_constraints=function.constraints,
        with_gradient=False,
        native_serialization_platforms=PLATFORMS,
    )

    limits = [
        (name, axis, function.limits[str(one.dims[axis])])
        for name, one in function.inputs.items()
        for axis in one.free_axes
        if one.dims[axis] in function.limits
    ]

    def call(**inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        with _module_options():
            outputs: Mapping[str, tf.Tensor] = converted(variables.tensors(), _check_lengths(inputs, limits))
        return outputs

    return call


def _check_lengths(inputs: "Mapping[str, tf.Tensor]", limits: Iterable[tuple[str, int, int]]) -> "dict[str, tf.Tensor]":
    """Let the graph refuse longer inputs: the limit of each input's axis. The program's own message would be internal.

    A program whose table of positions ends has no message, and answers with NaN or with the last row.
    """
    import tensorflow as tf

    checked = dict(inputs)
    for name, axis, longest in limits:
        message = f"input {name} can be at most {longest} long"
        check = tf.debugging.assert_less_equal(tf.shape(inputs[name])[axis], longest, message=message)
        with tf.control_dependencies([] if check is None else [check]):
            checked[name] = tf.identity(checked[name])
    return checked


@contextlib.contextmanager
def _module_options() -> Iterator[None]:
    """Write modules that TensorFlow reads, without source lines. Errors would show these to clients."""
    import jax
    from jax._src.export import _export

    config = {"jax_export_calling_convention_version": _MODULE_VERSION, "jax_traceback_in_locations_limit": 0}
    before = {name: getattr(jax.config, name) for name in config}
    for name, value in config.items():
        jax.config.update(name, value)
    write = _export._module_to_bytecode
    _export._module_to_bytecode = functools.partial(_without_composites, write)
    try:
        yield
    finally:
        _export._module_to_bytecode = write
        for name, value in before.items():
            jax.config.update(name, value)


def _without_composites(write: Callable[[Any], bytes], module: Any) -> bytes:  # noqa: ANN401 - a module of MLIR
    """Serialize a module with calls instead of composite operations, such as JAX's top_k.

    TensorFlow 2.21 cannot read these, and finds no free sizes within those of an older version.
    """
    from jax._src.lib import _jax
    from jax._src.lib.mlir import passmanager
    from jax._src.lib.mlir.dialects import hlo

    content = write(module)
    if b"composite" not in content:
        return content
    hlo.register_stablehlo_passes()
    with module.context:
        # Serialization makes the composite operations.
        written = _jax.mlir.deserialize_portable_artifact(content)
        passes = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
        passmanager.PassManager.parse(passes).run(written.operation)
    return write(written)


def _try_free_rows(function: JaxFunction, batch_sizes: tuple[int, ...]) -> tuple[str | None, str]:
    """Return the module's text with free dimensions, or None and the reason that JAX cannot lower it."""
    try:
        if not function.traced and goes_by_rows(lambda rows: _operations(_sized(function, rows)), batch_sizes):
            return None, "the model's code depends on the number"
        return _export(function), ""
    except Exception as error:  # a user's code given symbols for sizes may raise anything
        return None, f"{type(error).__name__}: {reason_of(error)}"


def _lower_first(forms: Sequence[JaxFunction], rows: int, longest: int | None) -> tuple[JaxFunction, str, list[str]]:
    """Return the first form that lowers for `rows` rows, its module's text, and the refusals of the forms before it.

    Raises BuilderFailed or CannotLower for the last form.
    """
    refusals = list[str]()
    for form in forms[:-1]:
        try:
            return form, _export(_sized(form, rows)), refusals
        except Exception as error:  # a user's code given symbols for sizes may raise anything
            refusals.append(f"{type(error).__name__}: {reason_of(error)}")
    return forms[-1], _lower(forms[-1], rows, longest), refusals


def _lower(function: JaxFunction, rows: int, longest: int | None) -> str:
    """Return the module's text for `rows` rows. Raises BuilderFailed or CannotLower."""
    try:
        return _export(_sized(function, rows))
    except Exception as error:  # the user's code
        raise _explain(function, rows, longest, error) from error


def _explain(function: JaxFunction, rows: int, longest: int | None, error: Exception) -> ExportError:
    """Return the error for a function that fails for free lengths, or also for a fixed length."""
    failed, advice = _sized(function, rows), ""
    if function.lengths:
        length = longest or min(function.limits.values(), default=TRIED_LENGTH)
        fixed = _sized(function, rows, length)
        try:
            _export(fixed)
        except Exception as fixed_error:  # the user's code
            failed, error = fixed, fixed_error
            if longest is not None:
                advice = f". {length} is the largest of --sequence-buckets. Is it longer than the model takes?"
        else:
            return _explain_length(function, length, longest is not None, error)
    if calls := _python_calls(failed):
        return CannotLower(
            f"the model calls Python code ({', '.join(calls)}), which a server cannot run. Remove jax.debug.print, "
            "jax.pure_callback and similar calls from the served model"
        )
    if isinstance(error, NotImplementedError):
        return CannotLower(
            f"JAX cannot lower the model for {' and '.join(PLATFORMS)}: {reason_of(error)}. Build the model without it"
        )
    inputs = ", ".join(f"{name}: {one}" for name, one in failed.inputs.items())
    reason = f"{type(error).__name__}: {reason_of(error)}".rstrip(".")
    return BuilderFailed(f"the model fails for {inputs}: {reason}{advice or advise(error)}")


def _python_calls(function: JaxFunction) -> list[str]:
    """Return the operations that call Python code. There are none in a function that fails in a trace."""
    try:
        return sorted({name for name in _operations(function) if "callback" in name or name == "debug_print"})
    except Exception:  # the user's code, whose error is already known
        return []


def _explain_length(function: JaxFunction, length: int, is_bucket: bool, error: Exception) -> CannotLower:
    name, one = next((name, one) for name, one in function.inputs.items() if one.lengths)
    dims = ",".join(str(dim) if dim not in one.lengths else str(length) for dim in one.dims)
    reason = f"{type(error).__name__}: {reason_of(error)}".rstrip(".")
    fix = f"a fixed length in --input, such as '{name}:{one.dtype}[{dims}]'"
    advice = (
        "List the lengths that servers pad to, such as --sequence-buckets 64,128, up to the longest that the model "
        f"takes. Or use {fix}"
    )
    if is_bucket:
        advice = f"A limit of {length}, the largest of --sequence-buckets, does not help. Use {fix}"
    return CannotLower(f"JAX cannot leave {', '.join(one.lengths)} of {name} free: {reason}. {advice}")


def _operations(function: JaxFunction) -> Operations:
    return list_operations(function.call, _shapes_alone(function).params, _abstract_inputs(function))


def _export(function: JaxFunction) -> str:
    import jax
    from jax import export

    params, inputs = _shapes_alone(function).params, _abstract_inputs(function)
    return str(export.export(jax.jit(function.call), platforms=PLATFORMS)(params, inputs).mlir_module())


def _trace(function: JaxFunction) -> tuple[Any, Any]:
    """Return the closed jaxpr, and the scope of its free sizes."""
    import jax

    inputs = _abstract_inputs(function)
    free = (size for one in inputs.values() for size in one.shape if not isinstance(size, int))
    return jax.jit(function.call).trace(_shapes_alone(function).params, inputs).jaxpr, next(free).scope


def _abstract_inputs(function: JaxFunction) -> Mapping[str, Any]:
    from jax import export

    scope = export.SymbolicScope(function.constraints)
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
