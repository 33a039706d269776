"""Tests for the search of custom calls in real StableHLO programs, and in damaged ones."""

import io

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export
from jax._src.interpreters.mlir import make_ir_context
from jax._src.lib.mlir import ir

from tpuserve_formats.safety.custom_calls import UNREADABLE, find_calls_in_bytecode

X = jnp.ones((4, 4))


def program(function: object, *, platform: str = "cpu", allowed: str = "") -> bytes:
    """Return the StableHLO of a function, as device programs and XlaCallModule have it."""
    checks = [export.DisabledSafetyCheck.custom_call(allowed)] if allowed else []
    exported = export.export(jax.jit(function), platforms=(platform,), disabled_checks=checks)(X)
    return bytes(exported.mlir_module_serialized)


def call(target: str) -> object:
    return lambda x: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct((4, 4), jnp.float32))(x) + 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x + 1,
        lambda x: jnp.linalg.eigh(x)[0],
        lambda x: jax.lax.approx_max_k(x, 2),
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
        lambda x: jax.random.normal(jax.random.key(0), (3,)) + x[0, :3],
    ],
)
def test_programs_that_jax_guarantees_are_allowed(function: object) -> None:
    assert find_calls_in_bytecode(program(function)) == []


@pytest.mark.parametrize(
    "target", ["memcpy", "xla_ffi_python_cpu_callback", "xla_python_gpu_callback", "mosaic_gpu_v2"]
)
def test_other_calls_are_named(target: str) -> None:
    assert find_calls_in_bytecode(program(call(target), allowed=target)) == [target]


def test_a_refused_call_next_to_an_allowed_one_is_named() -> None:
    def both(x: jax.Array) -> jax.Array:
        return jnp.linalg.eigh(x)[0] + jax.ffi.ffi_call("memcpy", jax.ShapeDtypeStruct((4,), jnp.float32))(x)

    assert find_calls_in_bytecode(program(both, allowed="memcpy")) == ["memcpy"]


TEXT = """module @jit_f {
  func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = "stablehlo.custom\\5Fcall"(%a) {"call\\5Ftarget\\5Fname" = "memcpy"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    return %0 : tensor<4x4xf32>
  }
}"""


@pytest.mark.parametrize("text", [TEXT, "func.func @main() { return }", ""])
def test_programs_as_text_are_refused(text: str) -> None:
    """MLIR decodes escapes in names, and no exporter stores text."""
    assert find_calls_in_bytecode(text.encode()) == [UNREADABLE]


def rewrite(text: str) -> bytes:
    """Return the bytecode of MLIR's text, as an attacker writes it."""
    stream = io.BytesIO()
    with make_ir_context() as context:
        context.allow_unregistered_dialects = True
        ir.Module.parse(text, context).operation.write_bytecode(stream)
    return stream.getvalue()


def test_bytecode_in_another_dialect_is_refused() -> None:
    """XLA accepts StableHLO without its stable form. An attribute with the name of an allowed call hid the call."""
    decoy = TEXT.replace("@jit_f {", '@jit_f attributes {x.y = {call_target_name = "Sharding"}} {')
    assert find_calls_in_bytecode(rewrite(decoy)) == [UNREADABLE]


def test_a_call_with_a_number_for_its_version_is_named() -> None:
    """StableHLO reads 4 as the version API_VERSION_TYPED_FFI. An allowed call next to it hid the call."""

    def both(x: jax.Array) -> jax.Array:
        return jnp.linalg.eigh(x)[0] + jax.ffi.ffi_call("memcpy", jax.ShapeDtypeStruct((4,), jnp.float32))(x)

    with make_ir_context() as context:
        module = ir.Module.parse(program(both, allowed="memcpy"), context)
        lines = module.operation.get_asm(print_generic_op_form=True).splitlines()
    version, number = "#vhlo<api_version_v1 API_VERSION_ORIGINAL>", "#vhlo.integer_v1<4 : i32>"
    [index] = [index for index, line in enumerate(lines) if '"memcpy"' in line]
    assert version in lines[index]
    lines[index] = lines[index].replace(version, number)
    assert find_calls_in_bytecode(rewrite("\n".join(lines))) == ["memcpy"]


def test_programs_on_a_mesh_are_read() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    exported = export.export(jax.jit(lambda x: jnp.linalg.eigh(x)[0], in_shardings=sharding))(X)
    assert b"sdy" in exported.mlir_module_serialized
    assert find_calls_in_bytecode(exported.mlir_module_serialized) == []


def test_the_name_of_a_composite_is_no_call() -> None:
    composite = jax.lax.composite(lambda x: jnp.linalg.eigh(x)[0], "my.eigenvalues")
    assert find_calls_in_bytecode(program(composite)) == []


@given(st.data())
def test_damage_never_hides_a_call(data: st.DataObject) -> None:
    """Cut and changed programs are refused, or their calls are named: never read as a program without calls."""
    whole = program_with_call()
    cut = data.draw(st.integers(4, len(whole) - 1))
    assert find_calls_in_bytecode(whole[:cut]) == [UNREADABLE]


_CALL: list[bytes] = []


def program_with_call() -> bytes:
    if not _CALL:
        _CALL.append(program(call("memcpy"), allowed="memcpy"))
    return _CALL[0]
