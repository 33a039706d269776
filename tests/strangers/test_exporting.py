"""An export ends as expected, or its line describes the difference."""

import os
import sys
from pathlib import Path

import pytest

from tests.strangers.exporting import Exported, export, find_fault
from tests.strangers.processes import Processes
from tests.strangers.stranger import Export, Refusal, Stranger

PUBLISHED = Exported(0, "", ("rows depend on each other",))
REFUSED = Exported(3, "moments of the batch", ())


@pytest.mark.parametrize(
    ("exported", "export"),
    [
        (PUBLISHED, Export("", "")),
        (PUBLISHED, Export("", "", warning="depend on")),
        (PUBLISHED, Export("", "", refusal=Refusal(3, "batch", required=False))),
        (REFUSED, Export("", "", refusal=Refusal(3, "batch"))),
        (REFUSED, Export("", "", refusal=Refusal(3, "batch", required=False))),
    ],
)
def test_an_expected_end_is_no_fault(exported: Exported, export: Export) -> None:
    assert find_fault(exported, export) == ""


@pytest.mark.parametrize(
    ("exported", "export", "fault"),
    [
        (REFUSED, Export("", ""), "the export exited with code 3: moments of the batch"),
        (PUBLISHED, Export("", "", warning="batch norm"), "the export printed no warning that contains 'batch norm'"),
        (
            PUBLISHED,
            Export("", "", refusal=Refusal(3, "batch")),
            "the export published a version, expected exit code 3 and 'batch'",
        ),
        (
            REFUSED,
            Export("", "", refusal=Refusal(2, "batch")),
            "the export exited with code 3: moments of the batch (expected exit code 2 and 'batch')",
        ),
        (
            REFUSED,
            Export("", "", refusal=Refusal(3, "ema", required=False)),
            "the export exited with code 3: moments of the batch (expected exit code 3 and 'ema')",
        ),
    ],
)
def test_an_unexpected_end_is_described(exported: Exported, export: Export, fault: str) -> None:
    assert find_fault(exported, export) == fault


def leave(folder: Path, base_path: Path) -> None:
    """End the process of a script with status 0 and without a report."""
    del folder
    print(f"{base_path.name} has no report", file=sys.stderr, flush=True)
    os._exit(0)


def test_an_export_without_a_report_is_a_fault_with_a_log_of_its_own(tmp_path: Path) -> None:
    script = Export("live", "", script="tests.strangers.test_exporting:leave")
    stranger = Stranger("leaves", "", (script,))
    for name in ("model-.keras", "model-.h5"):
        exported = export(stranger, script, tmp_path, tmp_path / name, Processes())
        assert find_fault(exported, script).startswith(
            f"the export exited with code 1: the export printed no report: {name} has no report"
        )
    assert "model-.keras has no report" in (tmp_path / "model-.keras.log").read_text()
