"""An export is as expected, or its line says why not."""

import pytest

from tests.strangers.exporting import Exported, find_fault
from tests.strangers.stranger import Export, Refusal

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
def test_what_is_expected_is_no_fault(exported: Exported, export: Export) -> None:
    assert find_fault(exported, export) == ""


@pytest.mark.parametrize(
    ("exported", "export", "fault"),
    [
        (REFUSED, Export("", ""), "export ended with exit code 3: moments of the batch"),
        (PUBLISHED, Export("", "", warning="batch norm"), "export printed no warning with 'batch norm'"),
        (PUBLISHED, Export("", "", refusal=Refusal(3, "batch")), "published, but expected exit code 3 with 'batch'"),
        (
            REFUSED,
            Export("", "", refusal=Refusal(2, "batch")),
            "expected exit code 2 with 'batch'; export ended with 3: moments of the batch",
        ),
        (
            REFUSED,
            Export("", "", refusal=Refusal(3, "ema", required=False)),
            "expected exit code 3 with 'ema'; export ended with 3: moments of the batch",
        ),
    ],
)
def test_what_is_not_expected_is_told(exported: Exported, export: Export, fault: str) -> None:
    assert find_fault(exported, export) == fault
