"""The parts of a report: the verdict, tiles, tables, charts, remarks."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tpuserve_loadtests.rendering.chart import Chart, Intervals

# "plan" stands for a dry run.
Kind: TypeAlias = Literal["good", "bad", "warn", "plan"]


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict of a report in a few words, with its reasons. The first reason is the cause."""

    kind: Kind
    words: str
    reasons: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """The verdict, then its cause, in one sentence."""
        if not self.reasons:
            return f"{self.words}."
        joint = "; " if ": " in self.words else ": "
        return f"{self.words}{joint}{self.reasons[0].rstrip('.')}."


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice that readers need before any figure."""

    words: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large type."""

    name: str
    figure: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. `is_total` marks the total of the other rows.

    `good` colours the last cell. `note` is text below the name. `anchor` is the section that the name links to.
    """

    name: str
    cells: Sequence[str]
    is_total: bool = False
    good: bool | None = None
    note: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of numbers, or of `words`, which a page may stack. Renderers omit a table without rows.

    On terminals, `names` aligns the first column or lets it fold. With "fitting" margins, narrow terminals first omit
    the margins, and then the columns in `spare`.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    intro: str = ""
    words: bool = False
    names: Literal["fold", "left", "right"] = "fold"
    spare: Collection[str] = ()
    margins: Literal["always", "fitting"] = "always"


@dataclass(frozen=True, slots=True)
class Charts:
    """A section of charts next to each other. Renderers omit it without charts."""

    title: str
    charts: Sequence[Chart | Intervals | None]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole; `size` is its absolute size as text."""

    name: str
    share: float
    size: str


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole as bars, with facts as a list below them."""

    title: str
    shares: Sequence[Share]
    facts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Remark:
    """Lines outside of the verdict. Renderers omit a remark without lines."""

    lines: Sequence[str]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Related sections below a common headline. `anchor` is the target of links to the group."""

    title: str
    headline: Headline
    sections: "Sequence[Section]"
    anchor: str


@dataclass(frozen=True, slots=True)
class Text:
    """One or more lines on a terminal. With `folds`, long lines break at the terminal's width."""

    text: str
    folds: bool = False


# A part of a page. None if there is nothing to show.
Section: TypeAlias = Table | Charts | Shares | Remark | Group | None
# A part of the output on a terminal.
Printed: TypeAlias = Table | Text
