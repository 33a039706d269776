"""Metrics of two versions, which their exports measured on labelled rows (`tpuserve export --expect`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

# Metadata field of tpuserve.
FIELD: Final = "tpuserve_evaluation"


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """The value of a metric over `rows` rows of `file`, whose hash is `sha256`. None if it is not finite."""

    value: float | None
    operator: str
    file: str
    sha256: str
    rows: int

    def __str__(self) -> str:
        return "not finite" if self.value is None else f"{self.value:.6g}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures by metric, signature and output."""

    figures: Mapping[tuple[str, str, str], MeasuredValue]

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Read a version's metadata field. Raises KeyError, TypeError or ValueError."""
        file, sha256, rows = str(fields["file"]), str(fields["sha256"]), int(fields["rows"])
        return cls(
            {
                (str(one["metric"]), str(one["signature"]), str(one["output"])): MeasuredValue(
                    None if one["value"] is None else float(one["value"]), str(one["operator"]), file, sha256, rows
                )
                for one in fields["metrics"]
            }
        )


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A metric of the live and of the new version, of which one may lack it."""

    metric: str
    output: str
    live: MeasuredValue | None
    new: MeasuredValue | None

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `equal` for the same labelled rows, or the reason why the figures do not compare."""
        if self.live is None or self.new is None:
            return f"the {'live' if self.live is None else 'new'} version has no figure"
        if self.live.sha256 != self.new.sha256:
            return "not comparable: other labelled rows"
        if self.live.operator[:1] != self.new.operator[:1]:
            return "not comparable: bounds of other directions"
        if self.live.value is None or self.new.value is None:
            return "not comparable: not finite"
        if self.live.value == self.new.value:
            return "equal"
        return "better" if (self.new.value > self.live.value) == (self.new.operator[:1] == ">") else "worse"

    @property
    def rows(self) -> str:
        """The labelled rows, of both versions if they differ."""
        figures = [figure for figure in (self.live, self.new) if figure is not None]
        return " and ".join(dict.fromkeys(f"{one.rows:,} rows of {one.file}" for one in figures))

    def __str__(self) -> str:
        live, new = ("none" if one is None else str(one) for one in (self.live, self.new))
        return f"{self.metric} of {self.output}: {live} to {new}, {self.verdict} ({self.rows})"


def compare_evaluations(live: Evaluation | None, new: Evaluation | None) -> Iterator[ComparedMetric]:
    """Yield every metric of either version, those of the new one first."""
    before, after = (({} if one is None else one.figures) for one in (live, new))
    for key in dict.fromkeys([*after, *before]):
        yield ComparedMetric(key[0], f"{key[1]}/{key[2]}", before.get(key), after.get(key))
