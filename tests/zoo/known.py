"""Faults of TensorFlow's kernels that no check of shapes prevents: the forms are small, and of an accepted rank."""

from fnmatch import fnmatchcase
from typing import Final

from tests.zoo.forms import Kind
from tests.zoo.sweep import Line

# Patterns of models, the beginning of their faults, and what the kernel does (TensorFlow 2.21).
KNOWN: Final = (
    ("encode_png", "died", "EncodePng of an image without pixels, in a loop, ends the process"),
    (
        "rfft_length",
        "wrong",
        "the reference, RFFT of no elements in TensorFlow, returns memory that it has not written",
    ),
)


def known_reason(line: Line) -> str:
    """Return why a fault is known, or "" for a new fault."""
    if line.saved.startswith("unranked") and line.kind is Kind.RANK and line.fault.startswith("died"):
        return "the kernel trusts a rank that the signature does not have"
    reasons = (why for model, fault, why in KNOWN if fnmatchcase(line.model, model) and line.fault.startswith(fault))
    return next(reasons, "")
