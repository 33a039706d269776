"""Tests for lowering: its check of private interfaces, and the emulation of a TPU's products."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs import lowering

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.usefixtures("tensorflow")]


@pytest.fixture
def uncached() -> Iterator[None]:
    lowering.check_lowering.cache_clear()
    yield
    lowering.check_lowering.cache_clear()


def test_interfaces_that_have_changed_are_told_by_version(uncached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from jax import export

    lowering.check_lowering()
    lowering.check_lowering.cache_clear()
    monkeypatch.setattr(export, "Exported", lambda **fields: None)  # another JAX has other fields
    with pytest.raises(
        CannotLower, match=r"cannot lower device programs with tensorflow 2\.\d+\.\d+, jax 0\.\d+\.\d+, jaxlib"
    ):
        lowering.check_lowering()


def test_lowering_that_computes_otherwise_is_noticed(uncached: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lower = lowering.lower_graph

    def subtracting(call: object, specs: object) -> lowering.LoweredGraph:
        return lower(lambda x: [value - 1.0 for value in call(x)], specs)  # type: ignore[operator, arg-type]

    monkeypatch.setattr(lowering, "lower_graph", subtracting)
    with pytest.raises(CannotLower, match="a small test function gives another answer after lowering"):
        lowering.check_lowering()


def test_products_are_of_operands_rounded_to_bfloat16() -> None:
    import jax.numpy as jnp
    from jax import lax

    random = np.random.default_rng(0)
    x, w = random.random((2, 300), np.float32), random.random((300, 3), np.float32)

    def call(x: object, w: object) -> tuple[object, ...]:
        image = jnp.reshape(x, (2, 1, 20, 15))
        convolved = lax.conv(image, jnp.ones((1, 1, 3, 3), jnp.float32), (1, 1), "VALID")
        return jnp.dot(x, w), jnp.dot(x, w, precision="highest"), convolved

    shapes = [lowering.shape_of(one.shape, one.dtype) for one in (x, w)]
    program = lowering.load_program(lowering.export_function(call, shapes, "device"))
    plain = lowering.run_program(program, [x, w])
    rounded = lowering.run_program(lowering.round_products(program), [x, w])
    np.testing.assert_allclose(rounded[0], in_bfloat16(x) @ in_bfloat16(w), rtol=1e-6)
    assert abs(rounded[0] - plain[0]).max() > 1e-3
    np.testing.assert_array_equal(rounded[1], plain[1])  # requests the highest precision
    assert abs(rounded[2] - plain[2]).max() > 1e-4


def in_bfloat16(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)
