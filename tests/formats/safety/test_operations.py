"""Tests that every operation and custom call of the installed libraries is classified."""

import pytest
from jax._src.export import _export
from tensorflow.python.framework import op_def_registry

from tpuserve_formats.safety.attributes import WITH_FILES
from tpuserve_formats.safety.custom_calls import CUSTOM_CALLS_FILE
from tpuserve_formats.safety.operations import (
    ALLOWED,
    EVALUATED_ANYWHERE,
    EVALUATED_WITH_FILES,
    FILE_INPUTS,
    OPERATIONS_FILE,
    danger_of,
    read_classification,
)
from tpuserve_formats.safety.update import NOT_REVIEWED, registered_operations, with_new

TEXT = OPERATIONS_FILE.read_text(encoding="utf-8")
# Read before any test runs, because a conversion to TensorFlow Lite registers further operations in the process.
REGISTERED = registered_operations()


def test_a_person_has_classified_every_operation_of_the_installed_tensorflow() -> None:
    kinds = read_classification(TEXT)
    assert REGISTERED - kinds.keys() == set()
    assert NOT_REVIEWED not in kinds.values()
    assert with_new(TEXT, REGISTERED) == TEXT


def test_a_new_operation_is_refused_until_it_is_reviewed() -> None:
    assert danger_of("BrandNewOp") == "is unknown to this check"
    assert read_classification(with_new(TEXT, ["BrandNewOp", "Abs"]))["BrandNewOp"] == NOT_REVIEWED


@pytest.mark.parametrize(
    ("operation", "danger"),
    [
        ("MatMul", ""),
        ("ReadFile", "reads files"),
        ("ImmutableConst", "reads files"),
        ("RecordInput", "reads files"),
        ("Skipgram", "reads files"),
        ("WriteFile", "writes files"),
        ("DumpTensor", "writes files"),
        ("CreateSummaryFileWriter", "writes files"),
        ("SqlDataset", "writes files"),
        ("EagerPyFunc", "runs Python code"),
        ("RpcCall", "talks to other processes"),
        ("DataServiceDatasetV4", "talks to other processes"),
        ("DatasetFromGraph", "runs code that this check cannot read"),
        ("XlaCustomCallV2", "runs code that this check cannot read"),
        ("Abort", "controls the process of the server"),
    ],
)
def test_kinds(operation: str, danger: str) -> None:
    assert danger_of(operation) == danger


def test_only_dangerous_operations_may_read_files_of_the_version() -> None:
    assert {operation: danger_of(operation) for operation in FILE_INPUTS} == dict.fromkeys(FILE_INPUTS, "reads files")
    assert ALLOWED in read_classification(TEXT).values()


def test_custom_calls_are_those_that_jax_guarantees_without_code_for_the_host() -> None:
    lines = CUSTOM_CALLS_FILE.read_text(encoding="utf-8").splitlines()
    guaranteed = _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
    assert {line for line in lines if not line.startswith("#")} == guaranteed - {"mosaic_gpu_v2"}


def test_refused_operations_without_state_count_anywhere() -> None:
    internal = "is internal to TensorFlow"
    stateless = {one for one in REGISTERED if not op_def_registry.get(one).is_stateful}
    refused = {one for one in stateless if danger_of(one) not in ("", internal)}
    never_evaluated = {"CacheDataset", "InitializeTableFromTextFile", "SymbolicGradient"}
    assert refused == EVALUATED_ANYWHERE | never_evaluated
    assert stateless & WITH_FILES == EVALUATED_WITH_FILES
