"""A command's report: what every renderer reads, whichever command it is of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.report_model.parts import Headline, Notice, Printed, Section, Tile

# Of a table for programs, by heading.
Cells: TypeAlias = Mapping[str, Any]
Document: TypeAlias = Any  # what JSON takes

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
    """What is read with charts. `origin`: in a line, what was measured and when.

    `settings`: what was asked for, by name. `notice` stands above everything. No `tiles`: their place is left out, too.
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
    """What a command found. Each form is made when it is asked for: most of them are not.

    `kind`: which command; `subject`: what was tested; `statement`: what it came to, in words, for who reads no figures.
    `printed`: for a terminal; `document`: for JSON; `rows`: for CSV. `runs`: whose latencies go into a histogram log,
    by name; `in_windows`: with a histogram of each window.
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
