"""A row of the truth table: the figures that the load tester reported next to those of the server's log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Largest accepted deviation of a percentile.
TOLERANCE: Final = 0.03
# HDR histograms keep three digits.
_ROUNDING: Final = 0.001
# Above this p99 delay of the server's own timers, another program used the machine. A timer is up to 1.1 ms late.
_BUSY_MS: Final = 2.5

PERCENTILES: Final = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Pair:
    """A reported figure and the true one. None for a figure that does not exist."""

    said: float | None
    true: float | None

    @property
    def deviation(self) -> float:
        """The relative deviation of the reported figure."""
        if self.said is None or self.true is None:
            return 0.0 if self.said is self.true else float("inf")
        return self.said / self.true - 1 if self.true else float("inf")

    def __str__(self) -> str:
        return "/".join("-" if value is None else f"{value:,.5g}" for value in (self.said, self.true))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row. `counts` must be equal pairs, by name. `close` pairs may deviate by TOLERANCE.

    `findings` are contradictions within the report. `misjudged` are wrong verdicts on the server. `reasons` are the
    load tester's own reasons to distrust its run. `floors` are percentiles of the server's own latencies, which no
    client can observe as shorter. `lateness_ms` is the p99 delay of the server's responses after their scripted time.
    `machine` is a reason of the machine to distrust the figures, if any.
    """

    shape: str
    behaviour: str
    planned: int | None
    logged: int
    counts: Mapping[str, Pair]
    close: Mapping[str, Pair]
    exit_code: int
    expected_exit: int
    floors: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    misjudged: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    lateness_ms: float = 0.0
    machine: str = ""
    takes: int = 1

    @property
    def wrong_counts(self) -> tuple[str, ...]:
        """Counts that are not exact, contradictions and wrong exit codes. No state of the machine excuses them.

        The exit code of a run that the load tester distrusts is 98. A wrong verdict has the exit code of that verdict.
        """
        found = [f"{name} {pair}" for name, pair in self.counts.items() if pair.said != pair.true]
        if self.exit_code != (98 if self.reasons else self.expected_exit) and not self.misjudged:
            found.append(f"exit code {self.exit_code}, expected {self.expected_exit}")
        return (*found, *self.findings)

    @property
    def wrong_figures(self) -> tuple[str, ...]:
        """Figures that deviate too far, or that no client can have observed, and verdicts from such figures."""
        found = list(self.misjudged)
        for name, pair in self.close.items():
            if abs(pair.deviation) > TOLERANCE:
                found.append(f"{name} {pair} ({pair.deviation:+.1%})")
            elif (pair.said or 0.0) < self.floors.get(name, 0.0) * (1 - _ROUNDING):
                found.append(f"{name} {pair}, below the server's own {self.floors[name]:.5g}")
        return tuple(found)

    @property
    def deviation(self) -> float:
        """The deviation of the worst percentile."""
        return max((pair.deviation for pair in self.close.values()), key=abs, default=0.0)

    @property
    def excuse(self) -> str:
        """The reason why the figures of this run mean nothing, or an empty string."""
        if self.reasons:
            return f"the run distrusts itself: {'; '.join(self.reasons)}"
        if self.lateness_ms > _BUSY_MS:
            return f"busy machine: the server's own timers were {self.lateness_ms:.1f} ms late at p99"
        return self.machine

    @property
    def verdict(self) -> str:
        """`exact`, the faults, or the excuse for wrong figures."""
        if self.wrong_counts:
            return f"WRONG: {'; '.join((*self.wrong_counts, *self.wrong_figures))}"
        if not self.wrong_figures:
            return f"exact, although {self.excuse}" if self.reasons else "exact"
        return self.excuse or f"WRONG: {'; '.join(self.wrong_figures)}"

    @property
    def is_right(self) -> bool:
        """Whether the load tester reported the truth, or has an excuse for its figures."""
        return not self.wrong_counts and (not self.wrong_figures or bool(self.excuse))
