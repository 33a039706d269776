import json

from tests.faults.fault_row import FaultRow
from tests.faults.fault_table import CASES, NOT_RUN, complete, json_table, markdown_table, text_table

ROW = FaultRow(2, "a|b", "REST", "400", "200", 10.4, 11.6, None, passed=False)


def test_table_has_a_row_for_every_case_with_the_reason_of_missing_ones() -> None:
    rows = complete([ROW], {3: ("too slow", "too large")})
    assert [row.case for row in rows] == sorted([*CASES, 3])
    assert [row.got for row in rows[:4]] == [
        f"not tested: {NOT_RUN}", "200", "not tested: too slow", "not tested: too large",
    ]  # fmt: skip


def test_failures_are_marked_and_missing_cases_are_not_passes() -> None:
    lines = text_table(complete([ROW], {})).splitlines()
    assert lines[2].endswith("10         12                   FAIL")
    assert not any(line.endswith("pass") for line in lines)
    assert "a\\|b" in markdown_table([ROW])


def test_json_holds_the_rows() -> None:
    assert [FaultRow.from_json(row) for row in json.loads(json_table([ROW]))] == [ROW]
