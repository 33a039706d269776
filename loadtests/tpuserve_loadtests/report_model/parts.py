"""The parts of a report: the verdict, tiles, tables, charts, remarks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpuserve_loadtests.report_model.chart import Chart, Intervals

# "plan": neither, as nothing was done.
Kind: TypeAlias = Literal["good", "bad", "warn", "plan"]


@dataclass(frozen=True, slots=True)
class Headline:
    """What a report comes to, in a few words, and why."""

    kind: Kind
    words: str
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that a reader must know before any figure."""

    words: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure, large."""

    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. `whole`: it sums up the other rows. `good` colours its last cell. `note`: text below the name.

    `anchor`: the section that its name links to.
    """

    name: str
    cells: Sequence[str]
    whole: bool = False
    good: bool | None = None
    note: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers in columns, or `words`, which a page may stack. Renderers omit a table without rows.

    For terminals: `names` aligns the first column or lets it fold. Narrow terminals omit the columns in `spare`.
    `margins`: always, on wide terminals only ("roomy"), or if the table fits with them ("fitting").
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    intro: str = ""
    words: bool = False
    names: Literal["fold", "left", "right"] = "fold"
    spare: Collection[str] = ()
    margins: Literal["always", "roomy", "fitting"] = "always"


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts side by side. Renderers omit the section without charts."""

    title: str
    charts: Sequence[Chart | Intervals | None]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole; `told` is its absolute size as text."""

    name: str
    share: float
    told: str


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole as bars, and facts in words below them."""

    title: str
    shares: Sequence[Share]
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Remark:
    """Lines that are no part of a verdict. Renderers omit a remark without lines."""

    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Sections that belong together, below their headline; `anchor`: the target of links to the group."""

    title: str
    headline: Headline
    sections: "Sequence[Section]"
    anchor: str


@dataclass(frozen=True, slots=True)
class Text:
    """One or more lines on a terminal; `folds`: long lines break at the terminal's width."""

    text: str
    folds: bool = False


# A part of a page. None if there is nothing to show.
Section: TypeAlias = Table | Charts | Shares | Remark | Group | None
# A part of the output on a terminal.
Printed: TypeAlias = Table | Text
