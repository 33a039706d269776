"""The report of a command, with one type for all commands and renderers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.parts import Headline, Notice, Printed, Section, Tile

# A row of machine-readable cells, by heading.
Cells: TypeAlias = Mapping[str, Any]
Document: TypeAlias = Any  # any JSON value

# Names of cases in several reports. CI systems track a case by its name, so names are stable and contain no figures.
ANSWERED: Final = "requests are answered"
GENERATOR: Final = "the load generator is not the limit"


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: failed with a `problem`, else skipped with a reason in `skipped`, else passed.

    `seconds` is the duration, if known.
    """

    name: str
    problem: str = ""
    skipped: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page with charts.

    `origin` is a line with the runs, their time and the version of the load tests. `settings` are shown by name.
    `notice` comes first. If `tiles` is None, the page omits their section.
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
    """The findings of a command. Each format is a function, because a command needs few formats.

    `kind` is the command, `subject` the model or scenario, and `statement` the result in words. `printed` is for a
    terminal, `document` for JSON, and `rows` for CSV. `runs` are the histogram log's runs by name. With `in_windows`,
    the log has a histogram for each window.
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
