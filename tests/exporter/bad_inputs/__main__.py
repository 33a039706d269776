"""`python -m tests.exporter.bad_inputs [SECTION ...]`: run the cases and rewrite docs/reference/export-errors.md.

Sections whose packages are missing stay unchanged. PyTorch's sections are written in PyTorch's environment.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.exporter.bad_inputs.case import Section
from tests.exporter.bad_inputs.page import read_sections, write_case, write_page, write_section
from tests.exporter.bad_inputs.running import run
from tests.exporter.bad_inputs.sections import SECTIONS, can_run
from tpuserve_exporter.models.frameworks import start_tensorflow


def main(wanted: list[str]) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    start_tensorflow()
    there = read_sections()
    written = {}
    for name, section in SECTIONS.items():
        if can_run(section) and (not wanted or name in wanted):
            written[section.title] = _run_all(section)
        elif section.title in there:
            written[section.title] = there[section.title]
    write_page(written)


def _run_all(section: Section) -> str:
    with tempfile.TemporaryDirectory() as made:
        section.make(Path(made))
        cases = []
        for case in section.cases:
            with tempfile.TemporaryDirectory() as folder:
                message = run(case, Path(made), Path(folder))
            faults = [*([] if message.code == case.code else [f"exit code {message.code}"]), *message.faults]
            sys.stdout.write("".join(f"{section.title}: {case.title}: {fault}\n" for fault in faults))
            cases.append(write_case(case, message))
    return write_section(section, cases)


if __name__ == "__main__":
    main(sys.argv[1:])
