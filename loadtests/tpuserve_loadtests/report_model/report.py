"""A command's report: the input of every renderer, the same type for all commands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.report_model.parts import Headline, Notice, Printed, Section, Tile

# Cells of a table for programs, by heading.
Cells: TypeAlias = Mapping[str, Any]
Document: TypeAlias = Any  # any value that JSON can hold

# Cases that several reports have. CI systems follow a case by its name: it has no figures in it, and stays.
ANSWERED: Final = "requests are answered"
GENERATOR: Final = "the load generator is not the limit"


@dataclass(frozen=True, slots=True)
class Case:
    """Failed where there is a `problem`, else not judged where it is `skipped`, which says why, else passed.

    `seconds`: how long it took, where that is known.
    """

    name: str
    problem: str = ""
    skipped: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page with charts. `origin`: one line on the runs, their time and the version of the load tests.

    `settings`: the settings to show, by name. `notice` comes first. If `tiles` is None, the page omits their section.
    """

    title: str
    origin: str
    headline: Headline
    tiles: Sequence[Tile] | None
    sections: Sequence[Section]
    settings: Mapping[str, str]
    notice: Notice | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a command. Each form is a function, because a command needs few of the forms.

    `kind`: the command; `subject`: the model or scenario; `statement`: the result in words, without a table.
    `printed` is for a terminal, `document` for JSON, `rows` for CSV. `runs`: the runs of the histogram log, by name;
    `in_windows`: the log has a histogram of each window.
    """

    kind: str
    subject: str
    exit_code: int
    cases: Sequence[Case]
    printed: Callable[[], Sequence[Printed]]
    document: Callable[[], Document]
    page: Callable[[], Page]
    rows: Callable[[], Sequence[Cells]] = list
    runs: Mapping[str, Measured] = field(default_factory=dict)
    in_windows: bool = True
    statement: str = ""
