"""Files that every model has, whatever tool wrote it. An incomplete copy of a version lacks some of them."""

import re
from collections.abc import Collection
from itertools import chain

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_server.core.terms.storage import show_name

MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "model.tflite")
# TensorFlow's checkpoints: https://www.tensorflow.org/guide/checkpoint#checkpoint_files
_SHARD = re.compile(r"(?P<stem>.+)\.data-[0-9]{5}-of-(?P<count>[0-9]{5})")


def missing_part(names: Collection[str]) -> str:
    """Describe a model's file that a version without a manifest lacks; empty for none.

    `names` are the relative names of its files, with slashes.
    """
    present = set(names)
    if not present:
        return "its directory is empty"
    if present.isdisjoint(MODEL_FILES):
        return f"{MODEL_FILES[0]} is missing"
    checkpoints = {(match["stem"], int(match["count"])) for match in map(_SHARD.fullmatch, present) if match}
    for stem, count in sorted(checkpoints):
        shards = (f"{stem}.data-{index:05}-of-{count:05}" for index in range(count))
        if absent := next((part for part in chain([f"{stem}.index"], shards) if part not in present), ""):
            return f"{show_name(absent)} is missing"
    return ""


def find_version_file(names: Collection[str]) -> str:
    """Return the file name that marks a directory as a version, not a base path; empty for none."""
    return next((name for name in (*MODEL_FILES, MANIFEST_FILE.as_posix()) if name in names), "")
