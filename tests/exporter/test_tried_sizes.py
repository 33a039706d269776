"""Tests of the sizes that a manifest names as tried, and that they do not make another version of a model."""

import numpy as np
import pytest

from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.signature import Signature, TensorSpec
from tpuserve_exporter.version.manifest import describe_signature


def tried(
    shape: tuple[int | None, ...] | None, sample: tuple[int, ...], buckets: tuple[int, ...] = ()
) -> tuple[tuple[int, int] | None, ...]:
    inputs = {"x": TensorSpec("float32", shape)}
    signature = Signature("serving_default", inputs, {"y": TensorSpec("float32", (None, 2))})
    samples = {"x": np.zeros(sample, np.float32)}
    described = describe_signature(signature, samples, (1, 4), True, SequenceOptions(buckets))
    return described.inputs["x"].tried_sizes


@pytest.mark.parametrize(
    ("shape", "sample", "expected"),
    [
        ((None, 8, 3), (6, 8, 3), ((1, 6), None, None)),
        ((None, None), (2, 5), ((1, 4), (5, 5))),
        # A signature without rows has no batch sizes.
        ((2, None), (2, 5), (None, (5, 5))),
        ((2, 3), (2, 3), ()),
        (None, (2, 3), ()),
    ],
)
def test_tried_sizes_are_those_of_the_samples_and_of_the_batches(
    shape: tuple[int | None, ...] | None, sample: tuple[int, ...], expected: tuple[tuple[int, int] | None, ...]
) -> None:
    assert tried(shape, sample) == expected


def test_tried_sizes_include_the_sequence_buckets() -> None:
    assert tried((None, None), (2, 5), (4, 16)) == ((1, 4), (4, 16))
