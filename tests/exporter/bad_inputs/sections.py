"""The sections of the page, in order. A run omits sections of frameworks that are not installed."""

import importlib.util

import pytest
from _pytest.mark import ParameterSet

from tests.exporter.bad_inputs import (
    hugging_face,
    keras_files,
    labelled,
    orbax,
    publishing,
    pytorch,
    saved_model,
    tf1_checkpoint,
    tf1_meta,
    tf2_checkpoint,
    trees,
    usage,
)
from tests.exporter.bad_inputs.case import Section

SECTIONS: dict[str, Section] = {
    "tf2-ckpt": tf2_checkpoint.SECTION,
    "tf1-ckpt": tf1_checkpoint.SECTION,
    "tf1-meta": tf1_meta.SECTION,
    "keras": keras_files.SECTION,
    "orbax": orbax.SECTION,
    "trees": trees.SECTION,
    "torch": pytorch.SECTION,
    "huggingface": hugging_face.SECTION,
    "savedmodel": saved_model.SECTION,
    "labelled": labelled.SECTION,
    "publishing": publishing.SECTION,
    "usage": usage.SECTION,
}


def list_cases(*, with_torch: bool) -> list[ParameterSet]:
    """Return the sections and cases that need PyTorch, or those that do not, as parameters `name` and `case`."""
    return [
        pytest.param(name, case, id=f"{name}: {case.title}")
        for name, section in SECTIONS.items()
        if ("torch" in section.packages) == with_torch
        for case in section.cases
    ]


def can_run(section: Section) -> bool:
    return all(importlib.util.find_spec(package) for package in section.packages)
