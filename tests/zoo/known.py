"""Faults of TensorFlow's kernels for small forms of the right rank, which no check of shapes can refuse."""

from typing import Final

from tests.zoo.sweep import Line

# The model, the beginning of its faults, and the kernel's fault (TensorFlow 2.21).
KNOWN: Final = (
    ("irfft", "died", "IRFFT of less than two elements is a failed check"),
    ("encode_png", "died", "EncodePng of an image without pixels ends the process"),
    ("conv2d_valid", "wrong", "oneDNN's Conv2D of less than a window returns memory that it has not written"),
    ("rfft_length", "wrong", "RFFT of no elements returns memory that it has not written"),
)


def known_reason(line: Line) -> str:
    """Return why a fault is known, or "" for a new fault."""
    reasons = (why for model, fault, why in KNOWN if line.model == model and line.fault.startswith(fault))
    return next(reasons, "")
