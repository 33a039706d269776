"""The result of comparing a version with its source: every comparison, and totals by output and by bucket."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuserve_exporter.checks.difference import Difference, OutputDifference, merge


@dataclass(frozen=True, slots=True)
class Comparison:
    """One batch: the answer of the version, loaded in one way, against the source's answer.

    `bucket` is the batch size, or None if the signature has no batch dimension.
    """

    case: str
    bucket: int | None
    padded: bool
    loaded_by: str
    difference: Difference

    @property
    def where(self) -> str:
        return f"{self.case}, loaded by {self.loaded_by}"


@dataclass(frozen=True, slots=True)
class ParityResult:
    """Comparisons of one signature over `rows` different rows.

    `all_nan` are outputs for which the source only returned NaN. Equal NaN values do not prove that the models agree.
    """

    rows: int
    comparisons: tuple[Comparison, ...]
    all_nan: tuple[str, ...] = ()

    @property
    def max_abs_difference(self) -> float:
        return max((one.difference.max_abs for one in self.comparisons), default=0.0)

    @property
    def outputs(self) -> dict[str, OutputDifference]:
        return _by_output(self.comparisons)

    @property
    def failed(self) -> list[Comparison]:
        return [one for one in self.comparisons if one.difference.beyond]

    def other_classes(self) -> list[str]:
        """Return the outputs whose largest score is not always at the source's class: `scores: 2 of 64`."""
        found = self.outputs.items()
        return [
            f"{name}: {one.ranked - one.agreeing} of {one.ranked}" for name, one in found if one.agreeing < one.ranked
        ]

    def below(self, top1: float) -> list[str]:
        """Return the outputs whose top-1 agreement with the source is below `top1`: `scores: 60.0%`."""
        shares = {name: one.top1_agreement for name, one in self.outputs.items()}
        return [f"{name}: {share:.1%}" for name, share in shares.items() if share is not None and share < top1]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "comparisons": len(self.comparisons),
            "outputs": {name: one.to_json() for name, one in self.outputs.items()},
            "buckets": [_bucket_to_json(group) for group in self._by_bucket()],
        }

    def _by_bucket(self) -> list[list[Comparison]]:
        groups: dict[tuple[int | None, bool, str], list[Comparison]] = {}
        for one in self.comparisons:
            groups.setdefault((one.bucket, one.padded, one.loaded_by), []).append(one)
        return list(groups.values())


def _by_output(comparisons: Iterable[Comparison]) -> dict[str, OutputDifference]:
    found: dict[str, list[OutputDifference]] = {}
    for one in comparisons:
        for name, difference in one.difference.outputs.items():
            found.setdefault(name, []).append(difference)
    return {name: merge(differences) for name, differences in found.items()}


def _bucket_to_json(group: list[Comparison]) -> Mapping[str, Any]:
    first = group[0]
    return {
        "batch_size": first.bucket,
        "padded": first.padded,
        "loaded_by": first.loaded_by,
        "comparisons": len(group),
        "outputs": {name: one.to_json() for name, one in _by_output(group).items()},
    }
