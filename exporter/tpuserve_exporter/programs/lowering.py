"""Lowering of TensorFlow and JAX functions to device programs: serialized `jax.export.Exported`, weights as arguments.

This module uses private interfaces of TensorFlow and JAX: `compiler_ir`, jaxlib's MLIR bindings and the constructor of
`Exported`. `check_lowering` tests them on a tiny function first. With an incompatible version, it raises an error, and
the exporter lowers no wrong programs.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.errors import CannotLower, MissingExtra, reason_of
from tpuserve_exporter.models.frameworks import compute_on_cpu

if TYPE_CHECKING:
    import tensorflow as tf

# Programs are lowered for a TPU without JAX's platform check, so that the exporter can run and check them on a CPU.
PLATFORM = "tpu"
_PACKAGES = ("tensorflow", "jax", "jaxlib")
# The calling convention version of modules from TensorFlow. JAX writes its own version into its exports.
_MODULE_VERSION = 9
_PRODUCTS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
# Bits of the exponent and of the mantissa.
_BFLOAT16_BITS = (8, 7)
# In `loc(fused["dense/MatMul", "ops.py":12:0])`, a string before a line number is a file.
_NAME_IN_LOCATION = re.compile(r'"((?:[^"\\\\]|\\\\.)*)"(?!:\d)')


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A TensorFlow function as StableHLO for fixed shapes.

    Its arguments are the inputs and then `captured`, in the function's order: handles of variables, and constants.
    """

    module: bytes
    captured: tuple[Any, ...]  # tensors and resource handles, which have no common type in TensorFlow


def versions() -> dict[str, str]:
    """Return the versions of the packages that lower programs, for the manifest."""
    return {package: importlib.metadata.version(package) for package in _PACKAGES}


@functools.cache
def check_lowering() -> None:
    """Lower a tiny function, run it and compare its output.

    Raises MissingExtra without JAX, and CannotLower if lowering fails or the output is wrong.
    """
    if importlib.util.find_spec("jax") is None:
        raise MissingExtra("device programs need JAX. Run pip install 'tpuserve-exporter[tpu]'")
    compute_on_cpu()
    try:
        works = _lower_tiny()
    except Exception as error:  # changed private interfaces raise many kinds of errors
        raise CannotLower(_CHANGED.format(_named(), f"{type(error).__name__}: {reason_of(error)}")) from error
    if not works:
        raise CannotLower(_CHANGED.format(_named(), "a small test function gives another answer after lowering"))


_CHANGED = (
    "cannot lower device programs with {} ({}). Lowering uses private interfaces of tensorflow 2.21 and jax 0.10. "
    "Run pip install 'tpuserve-exporter[tpu]', or export without device programs"
)


def _named() -> str:
    return ", ".join(f"{package} {version}" for package, version in versions().items())


def _lower_tiny() -> bool:
    """Lower and run `x @ weight + 1`. Return whether the output is correct."""
    import tensorflow as tf

    weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    lowered = lower_graph(lambda x: [tf.matmul(x, weight) + 1.0], [tf.TensorSpec([1, 2], tf.float32)])
    if len(lowered.captured) != 1 or lowered.captured[0] is not weight.handle:
        return False
    program = load_program(export_module(lowered.module, "self_test", range(2)))
    rows = np.array([[1.0, -1.0]], np.float32)
    return bool(np.array_equal(run_program(program, [rows, weight.numpy()])[0], [[-1.0, -1.0]]))


def lower_graph(call: "Callable[..., list[tf.Tensor]]", specs: "Sequence[tf.TensorSpec]") -> LoweredGraph:
    """Lower `call`, which takes tensors in order and returns a list, for the fixed shapes of `specs`.

    Raises ValueError or tf.errors.OpError if TensorFlow cannot compile it.
    """
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function import compiler_ir

    graph = tf.function(call, jit_compile=True, autograph=False).get_concrete_function(*specs)
    hlo = compiler_ir.from_concrete_function(graph, list(specs))(stage="hlo_serialized")
    lowered = LoweredGraph(_to_stablehlo(hlo), tuple(graph.captured_inputs))
    if (taken := len(_read_types(lowered.module)[0])) != len(specs) + len(lowered.captured):
        raise ValueError(
            f"the module takes {taken} tensors instead of {len(specs)} and {len(lowered.captured)} captured"
        )
    return lowered


def _to_stablehlo(hlo: bytes) -> bytes:
    """Convert HLO to a module that JAX reads. TensorFlow's converter fails on copies, which LSTMs contain."""
    from jaxlib import _jax
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with _mlir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        for copy in _find_operations(module, "mhlo.copy"):
            with ir.InsertionPoint(copy), copy.location:
                same = stablehlo.OptimizationBarrierOp([copy.operands[0]])
            copy.results[0].replace_all_uses_with(same.results[0])
            copy.erase()
        for operation in _find_operations(module):
            _drop_files(operation)
        return _to_bytecode(module)


def _find_operations(module: Any, *names: str) -> list[Any]:  # noqa: ANN401 - MLIR's bindings are untyped here
    """Find operations with these names, or all without names."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(operation: Any) -> Any:  # noqa: ANN401
        if not names or operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _drop_files(operation: Any) -> None:  # noqa: ANN401
    operation.location = _name_alone(operation.location)
    for argument in (one for region in operation.regions for block in region.blocks for one in block.arguments):
        argument.set_location(_name_alone(argument.location))


def _name_alone(location: Any) -> Any:  # noqa: ANN401
    """Reduce a location to the operation's name, which profiles show. Drop file names of the exporter's machine."""
    from jaxlib.mlir import ir

    named = _NAME_IN_LOCATION.search(str(location))
    return ir.Location.name(named[1]) if named else ir.Location.unknown()


@contextlib.contextmanager
def _mlir_context() -> Iterator[Any]:
    from jax._src.interpreters import mlir

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        yield context


def _to_bytecode(module: Any) -> bytes:  # noqa: ANN401
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def _read_types(module: bytes) -> tuple[list[Any], list[Any]]:
    """Read the types of the module's arguments and results as JAX avals. TensorFlow does not always report them."""
    from jax._src import core
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with _mlir_context():
        parsed = ir.Module.parse(module)
        main = next(one for one in parsed.body.operations if ir.StringAttr(one.attributes["sym_name"]).value == "main")
        signature = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        dtypes = {str(mlir.dtype_to_ir_type(np.dtype(name))): np.dtype(name) for name in _dtype_names()}

        def read(tensor: Any) -> Any:  # noqa: ANN401
            ranked = ir.RankedTensorType(tensor)
            return core.ShapedArray(tuple(ranked.shape), dtypes[str(ranked.element_type)])

        return [read(one) for one in signature.inputs], [read(one) for one in signature.results]


def _dtype_names() -> tuple[str, ...]:
    import ml_dtypes  # noqa: F401 - makes its dtypes known to numpy by name

    signed, unsigned = [f"int{bits}" for bits in (8, 16, 32, 64)], [f"uint{bits}" for bits in (8, 16, 32, 64)]
    floats = ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]
    return ("bool", *signed, *unsigned, *floats, "complex64", "complex128")


def count_results(module: bytes) -> int:
    """Count the module's results: the function's outputs, and the new value of each variable that it changes."""
    return len(_read_types(module)[1])


def export_module(module: bytes, name: str, order: Sequence[int]) -> bytes:
    """Return a program for a module. The module's argument n is the program's argument `order[n]`.

    64-bit dtypes stay unchanged. JAX cannot serialize a manually constructed `Exported`, so this exports it again.
    """
    import jax

    parameters, returned = _read_types(module)
    by_hand = _exported(module, parameters, returned)
    arguments: list[Any] = [None] * len(parameters)
    for aval, position in zip(parameters, order, strict=True):
        arguments[position] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def call(*tensors: Any) -> Any:  # noqa: ANN401 - JAX's tracers
        return tuple(by_hand.call(*(tensors[position] for position in order)))

    call.__name__ = name
    with jax.enable_x64(True):
        return _export(call, arguments)


def _exported(module: bytes, parameters: Sequence[Any], returned: Sequence[Any]) -> Any:  # noqa: ANN401
    from jax import export, tree_util

    _, in_tree = tree_util.tree_flatten((tuple(parameters), {}))
    _, out_tree = tree_util.tree_flatten(tuple(returned))
    return export.Exported(
        fun_name="graph",
        in_tree=in_tree,
        in_avals=tuple(parameters),
        out_tree=out_tree,
        out_avals=tuple(returned),
        _has_named_shardings=False,
        _in_named_shardings=(None,) * len(parameters),
        _out_named_shardings=(None,) * len(returned),
        in_shardings_hlo=(None,) * len(parameters),
        out_shardings_hlo=(None,) * len(returned),
        nr_devices=1,
        # With several platforms, the module would take the platform index as an argument.
        platforms=(PLATFORM,),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(_anywhere(),),
        mlir_module_serialized=module,
        calling_convention_version=_MODULE_VERSION,
        module_kept_var_idx=tuple(range(len(parameters))),
        uses_global_constants=False,
        _get_vjp=None,
    )


def _anywhere() -> Any:  # noqa: ANN401
    from jax import export

    return export.DisabledSafetyCheck.platform()


def export_function(call: Callable[..., tuple[Any, ...]], arguments: Sequence[Any], name: str) -> bytes:
    """Return a program for a JAX function, for the fixed shapes of `arguments` (jax.ShapeDtypeStruct, in order).

    It computes in 32 bits, JAX's default. Exceptions of the function and of JAX propagate.
    """

    def run(*arrays: Any) -> Any:  # noqa: ANN401 - JAX's tracers
        return call(*arrays)

    run.__name__ = name
    return _export(run, arguments)


def _export(call: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    import jax
    from jax import export

    with _no_source_lines():
        exported = export.export(jax.jit(call), platforms=(PLATFORM,), disabled_checks=[_anywhere()])(*arguments)
        return bytes(exported.serialize())


@contextlib.contextmanager
def _no_source_lines() -> Iterator[None]:
    """Omit source lines, so that programs do not depend on the machine that lowers them or reveal its paths."""
    import jax

    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def load_program(program: bytes) -> Any:  # noqa: ANN401 - jax.export.Exported, which is untyped here
    """Load a serialized program. Raises ValueError or other exceptions for an invalid program."""
    from jax import export

    return export.deserialize(bytearray(program))


def round_products(program: Any) -> Any:  # noqa: ANN401 - both jax.export.Exported
    """Round float32 operands of products and convolutions to bfloat16, a TPU's default precision.

    Sums stay in float32, as on a TPU. Operations that request a higher precision keep it.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with _mlir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, program.mlir_module_serialized)
        for product in _find_operations(module, *_PRODUCTS):
            named = "precision_config"
            if named not in product.attributes or "HIGH" not in str(product.attributes[named]):
                _round_operands(product, ir, stablehlo)
        return dataclasses.replace(program, mlir_module_serialized=_to_bytecode(module))


def _round_operands(product: Any, ir: Any, stablehlo: Any) -> None:  # noqa: ANN401 - MLIR's bindings
    for index in (0, 1):
        operand = product.operands[index]
        if str(ir.RankedTensorType(operand.type).element_type) == "f32":
            with ir.InsertionPoint(product), product.location:
                rounded = stablehlo.ReducePrecisionOp(operand, *_BFLOAT16_BITS)
            product.operands[index] = rounded.results[0]


def rewrite_module(program: Any, rewrite: Callable[[str], str]) -> bytes:  # noqa: ANN401 - jax.export.Exported
    """Rewrite the text of the program's module and serialize it. Raises MLIRError if the new text does not parse."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with _mlir_context():
        module = ir.Module.parse(rewrite(program.mlir_module()))
        return bytes(stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version()))


def run_program(program: Any, arguments: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Compile the program for this machine's CPU and run it. Return the results in order as numpy arrays. Blocks."""
    return [np.asarray(one) for one in compile_program(program)(*arguments)]


def compile_program(program: Any) -> Callable[..., Sequence[Any]]:  # noqa: ANN401
    """Return a function that runs the program on this machine's CPU. Its first call compiles.

    Arguments must have exactly the program's dtypes.
    """
    import jax

    device, compiled = jax.local_devices(backend="cpu")[0], jax.jit(program.call)

    def run(*arguments: Any) -> Sequence[Any]:  # noqa: ANN401
        # Without enable_x64, JAX would convert 64-bit arguments to 32 bits.
        with jax.enable_x64(True), jax.default_device(device):
            results: Sequence[Any] = compiled(*arguments)
            return results

    return run


def shape_of(dims: Sequence[int], dtype: Any) -> Any:  # noqa: ANN401 - anything that names a dtype
    """Return an argument for `export_function`."""
    import jax

    return jax.ShapeDtypeStruct(tuple(dims), jax.dtypes.canonicalize_dtype(dtype))
