"""The sections of the page, in order. A run omits sections of frameworks that are not installed."""

import importlib.util

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


def can_run(section: Section) -> bool:
    return all(importlib.util.find_spec(package) for package in section.packages)
