"""Compares a signature of image files with the source, which gets the same pixels prepared without TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tpuserve_exporter.checks.difference import Tolerance, compare
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.signatures.image_bytes import INPUT
from tpuserve_exporter.signatures.raw_images import encode_png
from tpuserve_exporter.signatures.served_signature import WrappedReference
from tpuserve_exporter.terms.samples import take_rows
from tpuserve_exporter.terms.signature import Array, Runnable, Signature, Tensors

_ROWS = 2


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """Image files with the signature's other inputs, and the source's answers to their pixels."""

    inputs: Tensors
    expected: Tensors


def run_raw_images(source: WrappedReference, samples: Mapping[str, Tensors]) -> dict[str, RawAnswer]:
    """Return the source's answers to images of known pixels, by signature. Other inputs are those of `samples`."""
    return {
        name: _run(source, raw.name, raw.prepare(pixels), pixels, samples[name])
        for name, raw in source.raw_images.items()
        for pixels in [raw.draw(_ROWS)]
    }


def _run(source: WrappedReference, name: str, prepared: Array, pixels: Array, sample: Tensors) -> RawAnswer:
    others = take_rows({other: value for other, value in sample.items() if other != INPUT}, slice(0, _ROWS))
    files = np.array([encode_png(one) for one in pixels], object)
    return RawAnswer({INPUT: files, **others}, source.run_device({name: prepared, **others}))


def check_raw_images(signature: Signature, raw: RawAnswer, version: Runnable, tolerance: Tolerance) -> None:
    """Compare the answers of `version` to the files. Raises ParityFailed if they differ."""
    difference = compare(raw.expected, version.run(signature, raw.inputs), tolerance)
    if difference.beyond:
        raise ParityFailed(
            f"{signature.name}: answers to PNG files and to their pixels differ: {difference.beyond}. The tolerance "
            f"is {tolerance} (--atol, --rtol)",
            max_abs_difference=difference.max_abs if np.isfinite(difference.max_abs) else None,
            atol=tolerance.atol,
            rtol=tolerance.rtol,
        )
