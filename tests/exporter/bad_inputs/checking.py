"""The check of a case: its exit code, no files left behind, and the message in docs/reference/export-errors.md."""

from pathlib import Path

from tests.exporter.bad_inputs.case import Case, Section
from tests.exporter.bad_inputs.page import read_sections, write_case
from tests.exporter.bad_inputs.running import run


def check(section: Section, case: Case, sources: Path, folder: Path) -> None:
    message = run(case, sources, folder)
    assert message.code == case.code, message.err
    assert message.faults == (), f"{message.faults}\n{message.out}{message.err}"
    assert write_case(case, message) in read_sections()[section.title], message.err
