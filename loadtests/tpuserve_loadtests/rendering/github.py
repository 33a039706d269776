"""Reports for GitHub Actions: annotations as workflow commands, and tables in Markdown for the job's summary.

The escapes of commands are those of GitHub's toolkit (`packages/core/src/command.ts`).
"""

import re
from collections.abc import Sequence
from typing import Final

from tpuserve_loadtests.rendering.report import Page, Report, Row, Table

_DATA: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY: Final = {**_DATA, ":": "%3A", ",": "%2C"}
# Characters that Markdown or HTML would interpret in a cell, such as those of a server's error message.
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>|~#&])")
_MOST_ROWS: Final = 50


def annotations(report: Report) -> list[str]:
    """Return a command for each failed check: a warning if it has no result, or the report is inconclusive."""
    is_inconclusive = report.page().headline.kind == "warn"
    lines = []
    for case in report.cases:
        if problem := case.problem or case.error:
            level = "warning" if is_inconclusive or not case.problem else "error"
            title = _escaped(f"{report.kind} {report.subject}: {case.name}", _PROPERTY)
            lines.append(f"::{level} title={title}::{_escaped(problem, _DATA)}")
    return lines


def summary(report: Report) -> str:
    """Return the headline and the tables of the report's page as Markdown."""
    page: Page = report.page()
    headline = page.headline
    tables = [_table(section) for section in page.sections if isinstance(section, Table) and section.rows]
    reasons = "".join(f"- {_text(reason)}\n" for reason in headline.reasons)
    return "\n".join([f"### {_text(page.title)}\n", f"**{_text(headline.words)}**\n", reasons, *tables]) + "\n"


def _table(table: Table) -> str:
    head = _line(table.headings) + _line(["---"] * len(table.headings), plain=True)
    return f"#### {_text(table.title)}\n\n{head}{''.join(map(_row, table.rows[:_MOST_ROWS]))}"


def _row(row: Row) -> str:
    return _line([f"{row.name} ({row.note})" if row.note else row.name, *row.cells])


def _line(cells: Sequence[str], *, plain: bool = False) -> str:
    return f"| {' | '.join(cells if plain else map(_text, cells))} |\n"


def _text(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


def _escaped(text: str, escapes: dict[str, str]) -> str:
    return "".join(escapes.get(character, character) for character in text)
