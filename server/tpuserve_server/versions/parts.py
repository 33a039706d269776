"""The files that every model has, whoever wrote it: what tells a version that is being copied from a whole one."""

import re
from collections.abc import Collection

from tpuserve_server.versions.manifest import MANIFEST_PATH

MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt", "model.tflite")
# TensorFlow's checkpoints: https://www.tensorflow.org/guide/checkpoint#checkpoint_files
_SHARD = re.compile(r"(?P<stem>.+)\.data-[0-9]{5}-of-(?P<count>[0-9]{5})")


def missing_part(names: Collection[str]) -> str:
    """What a version without a manifest lacks of the files of a model; empty for nothing.

    `names` are its files', relative and with slashes.
    """
    present = set(names)
    if not present:
        return "its folder is empty"
    if present.isdisjoint(MODEL_FILES):
        return f"{MODEL_FILES[0]} is missing"
    checkpoints = {(match["stem"], int(match["count"])) for match in map(_SHARD.fullmatch, present) if match}
    for stem, count in sorted(checkpoints):
        parts = (f"{stem}.index", *(f"{stem}.data-{index:05}-of-{count:05}" for index in range(count)))
        if absent := next((part for part in parts if part not in present), ""):
            return f"{absent} is missing"
    return ""


def find_version_file(names: Collection[str]) -> str:
    """The file among `names` that shows a folder to be a version, not a base path; empty where there is none."""
    return next((name for name in (*MODEL_FILES, MANIFEST_PATH.as_posix()) if name in names), "")
