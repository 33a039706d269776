"""A program with bfloat16 instead of every float32, to check whether it would fit. The check ignores its outputs.

The functions here rewrite the module's text. If the result does not parse, the preflight reports nothing on bfloat16.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tpuserve_exporter.programs.lowering import rewrite_module

_CONSTANT = re.compile(r"dense<(?P<values>[^>]*)>(?P<type> : tensor<(?:\d+x)*f32>)")
# Hexadecimal bytes of all elements, or bits of one element. The upper half of a float32 is the bfloat16.
_BYTES = re.compile(r'"0x([0-9A-F]+)"')
_BITS = re.compile(r"0x([0-9A-F]{4})[0-9A-F]{4}\b")
_FLOAT32 = re.compile(r"(?<![\w%@.\"])f32\b|(?<=x)f32(?=[>,])")


def in_bfloat16(program: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: ANN401 - jax.export.Exported
    """Return the rewritten program as a callable, and the shapes of its arguments."""
    shapes = {"in_avals": tuple(map(_halved, program.in_avals)), "out_avals": tuple(map(_halved, program.out_avals))}
    serialized = rewrite_module(program, rewrite)
    halved = dataclasses.replace(program, mlir_module_serialized=serialized, **shapes)
    return halved.call, halved.in_avals


def rewrite(text: str) -> str:
    """Replace every float32 in a module's MLIR text by bfloat16."""
    return _FLOAT32.sub("bf16", _CONSTANT.sub(_halve_constant, text))


def _halve_constant(found: re.Match[str]) -> str:
    values = _BYTES.sub(lambda one: f'"0x{_upper_halves(one[1])}"', found["values"])
    if values == found["values"]:
        values = _BITS.sub(r"0x\1", values)
    return f"dense<{values}>{found['type']}"


def _upper_halves(digits: str) -> str:
    """Return the upper halves of little-endian float32 values in hexadecimal digits."""
    return np.frombuffer(bytes.fromhex(digits), np.uint16)[1::2].tobytes().hex().upper()


def _halved(aval: Any) -> Any:  # noqa: ANN401 - jax's ShapedArray has no types
    import jax.numpy as jnp

    return aval.update(dtype=jnp.dtype(jnp.bfloat16)) if aval.dtype == np.float32 else aval
