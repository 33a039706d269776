"""Tests for the choice of the fixed shapes that become programs."""

import pytest

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.programs.device_programs import Bucket, list_buckets
from tpuserve_exporter.terms.signature import Signature, TensorSpec


def of(inputs: tuple[int | None, ...], outputs: tuple[int | None, ...]) -> Signature:
    return Signature("model", {"x": TensorSpec("float32", inputs)}, {"y": TensorSpec("float32", outputs)})


@pytest.mark.parametrize(
    ("signature", "lengths", "named"),
    [
        (of((None, 3), (None, 2)), (), ["b1", "b4"]),
        (of((None, 3), (None, 2)), (8,), ["b1", "b4"]),
        (of((None, None), (None, 2)), (8, 16), ["b1_s8", "b1_s16", "b4_s8", "b4_s16"]),
        (of((4, 3), (4, 2)), (), ["fixed"]),
        (of((4, None), (4, 2)), (8, 16), ["fixed_s8", "fixed_s16"]),
    ],
)
def test_every_batch_size_comes_with_every_length(
    signature: Signature, lengths: tuple[int, ...], named: list[str]
) -> None:
    assert [one.name for one in list_buckets(signature, (1, 4), lengths)] == named


def test_free_dimensions_get_the_sizes_of_the_bucket() -> None:
    spec = TensorSpec("int32", (None, None, 5))
    assert Bucket(4, 16).shape(spec) == (4, 16, 5)
    assert Bucket(None, 16).shape(TensorSpec("int32", (2, None))) == (2, 16)


def test_a_model_that_takes_rows_and_returns_none_has_no_fixed_shapes() -> None:
    with pytest.raises(CannotLower, match="not every input and output has rows"):
        list_buckets(of((None, 3), (2,)), (1, 4), ())
