"""What reports are made of: the verdict, tiles, tables, charts, remarks."""

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
    """What a reader must know before any figure."""

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
    """Of a table; `whole`: sums up the others. `good` colours its last cell. `note`: what to know, below the name.

    `anchor`: of the section that its name leads to.
    """

    name: str
    cells: Sequence[str]
    whole: bool = False
    good: bool | None = None
    note: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers in columns, or `words`, which a page may set below each other; nothing of no rows.

    On a terminal: `names` says where the first column stands, and whether it may fold; headings in `spare` are left out
    where there is little room; margins are where there is room, by `margins`: always, not where there is little room,
    or where the table fits with them.
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
    """Charts side by side; nothing of none."""

    title: str
    charts: Sequence[Chart | Intervals | None]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole; `told` says how large it is itself."""

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
    """Lines that are no part of a verdict; nothing of none."""

    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Sections that belong together, below what they come to; `anchor`: where links to it lead."""

    title: str
    headline: Headline
    sections: "Sequence[Section]"
    anchor: str


@dataclass(frozen=True, slots=True)
class Text:
    """A line on a terminal, or several; one that `folds` is broken where the terminal ends."""

    text: str
    folds: bool = False


# Of a page. None where there is nothing to be said.
Section: TypeAlias = Table | Charts | Shares | Remark | Group | None
# On a terminal.
Printed: TypeAlias = Table | Text
