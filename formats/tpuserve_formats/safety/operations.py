"""The classification of TensorFlow's operations, in `operations.txt`: allowed, or the reason against them.

It is an allow-list. An operation that is not in it, of a library or a later TensorFlow, is unknown and refused.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

OPERATIONS_FILE: Final = Path(__file__).with_name("operations.txt")
ALLOWED: Final = "allowed"
UNKNOWN: Final = "is unknown to this check"

# The string input with the name of the file that an operation reads. Other operations with files are never excused.
FILE_INPUTS: Final[Mapping[str, int]] = {
    "CacheDataset": 1,
    "CacheDatasetV2": 1,
    "FixedLengthRecordDataset": 0,
    "FixedLengthRecordDatasetV2": 0,
    "InitializeTableFromTextFile": 1,
    "InitializeTableFromTextFileV2": 1,
    "ReadFile": 0,
    "Restore": 0,
    "RestoreSlice": 0,
    "RestoreV2": 0,
    "SimpleMLLoadModelFromPathWithHandle": 1,
    "TFRecordDataset": 0,
    "TFRecordDatasetV2": 0,
    "TextLineDataset": 0,
}
# Those that read files of a directory, and all of whose files have fixed names.
DIRECTORIES: Final = frozenset({"SimpleMLLoadModelFromPathWithHandle"})
# Those that also write the file.
CACHES: Final = frozenset({"CacheDataset", "CacheDatasetV2"})

# TensorFlow may evaluate operations without state while it imports a graph, if their inputs are constant, whoever needs
# their result. These are the refused ones. Three are missing: TensorFlow evaluates no calls of functions and no
# tables (SymbolicGradient, InitializeTableFromTextFile), and CacheDataset opens its file only in an iteration.
EVALUATED_ANYWHERE: Final = frozenset({
    "Abort", "Copy", "CopyHost", "DatasetFromGraph", "DebugIdentity", "DebugNanCount", "DebugNumericSummary",
    "GenerateVocabRemapping", "ImmutableConst", "MatchingFiles", "MlirPassthroughOp", "PyFuncStateless", "ReadFile",
    "RegisterDataset", "RegisterDatasetV2", "SnapshotChunkDataset", "SnapshotDataset", "SnapshotDatasetReader",
    "SnapshotDatasetV2", "SnapshotNestedDatasetReader", "XlaCustomCall", "XlaCustomCallV2",
})  # fmt: skip
# Allowed operations without state whose attributes may name a file.
EVALUATED_WITH_FILES: Final = frozenset({"DecodeProtoV2", "EncodeProto"})


@cache
def _kinds() -> Mapping[str, str]:
    return read_classification(OPERATIONS_FILE.read_text(encoding="utf-8"))


def read_classification(text: str) -> dict[str, str]:
    """Return the kind of each operation: `[kind]` lines begin the sections, the other lines are names."""
    kinds, kind = dict[str, str](), ""
    for line in text.splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            kinds[line] = kind
    return kinds


def danger_of(operation: str) -> str:
    """Return what an operation does that a model may not, such as `reads files`; empty for an allowed operation."""
    kind = _kinds().get(operation, UNKNOWN)
    return "" if kind == ALLOWED else kind
