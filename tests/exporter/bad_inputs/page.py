"""docs/reference/export-errors.md: every case with its real output, in sections."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.exporter.bad_inputs.case import Case, Section
from tests.exporter.bad_inputs.running import Output

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/export-errors.md"
_WIDTH = 112
_HEAD = """\
# Export errors

This page lists messages of `tpuserve export` for damaged or unsuitable sources, and for wrong commands. Each case shows
the command, its message and its [exit code](export-output.md#exit-codes). In all cases the exporter publishes nothing
and leaves no files.

`tests/exporter/bad_inputs` runs each case and compares the message. `python -m tests.exporter.bad_inputs` writes this
page.
"""


def write_case(case: Case, message: Output) -> str:
    """Format a case for the page."""
    lines = [f"$ tpuserve export {case.command}", *_fold(message.err.strip("\n"))]
    shown = "\n".join(line.rstrip() for line in lines)
    return f"### {case.title}\n\n```\n{shown}\n```\n\nExit code {message.code}.\n"


def write_page(sections: Mapping[str, str]) -> None:
    PAGE.write_text("\n".join([_HEAD, *sections.values()]))


def write_section(section: Section, cases: list[str]) -> str:
    return "\n".join([f"## {section.title}\n\n{textwrap.fill(section.intro, 120)}\n", *cases])


def read_sections() -> dict[str, str]:
    """Return the sections of the existing page by title."""
    if not PAGE.exists():
        return {}
    parts = PAGE.read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def _fold(text: str) -> list[str]:
    """Wrap messages, which are one long line, like a terminal does. Tables stay unchanged."""
    folded: list[str] = []
    for line in text.splitlines():
        fold = line.startswith(("error:", "Error:", "warning:"))
        folded += textwrap.wrap(line, _WIDTH, break_long_words=False, break_on_hyphens=False) if fold else [line]
    return folded
