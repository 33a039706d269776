"""The outcome of a comparison of two versions: figures, intervals, failures, verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_formats.counted import counted
from tpuserve_formats.price import Price
from tpuserve_loadtests.golden.difference import Parity
from tpuserve_loadtests.judgement.exit_codes import exit_code
from tpuserve_loadtests.judgement.run import NOT_TRUSTED, Rules, judge_generator
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import GateResult, Lines, Threshold
from tpuserve_loadtests.measurement.measured import Measured, together
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.monitoring.watched import Watched, changes
from tpuserve_loadtests.rendering.report import ANSWERED, ENDED, GENERATOR, Case
from tpuserve_loadtests.rendering.scales import percent, three_significant
from tpuserve_loadtests.statistics.comparison import (
    CONFIDENCE,
    FIGURES,
    RATE,
    Comparison,
    Failures,
    Figure,
    Ratio,
    Round,
    Sample,
    Verdict,
    compare,
)

LEAST_ROUNDS = 3
SIDES = ("A", "B")
VERDICTS = {
    Verdict.SAME: "B is the same as A",
    Verdict.BETTER: "B is better",
    Verdict.WORSE: "B is worse",
    Verdict.FAILING: "Requests failed",
    Verdict.UNCLEAR: "Inconclusive: B may be worse",
}
# Heading of the intervals, which hold together.
INTERVAL = f"{100 * CONFIDENCE:g} % interval"
_WIDE = 1000.0
# Name of the failures among the figures.
FAILED = "failures"


@dataclass(frozen=True, slots=True)
class SideTotal:
    """All runs of A or of B together. `name` is the version, label or address."""

    letter: str
    name: str
    measured: Measured

    @property
    def total(self) -> Summary:
        return self.measured.total.summary(self.letter, self.measured.rate_per_s)

    @property
    def problem(self) -> str:
        """The share of requests that failed, with the most frequent error; empty if none failed."""
        errors = self.measured.recorder.errors()
        if not errors:
            return ""
        share = f"{percent(self.measured.error_rate)} of {counted(self.measured.total.requests, 'request')}"
        return f"{self.letter} ({self.name}) failed {share}, most often with: {errors[0].message}"


@dataclass(frozen=True, slots=True)
class ComparisonOutcome:
    """The outcome of a comparison. `comparison` is None after too few rounds.

    With `strict`, a generator at its limit fails the comparison. With `fail_if_unclear`, an unclear figure does.
    `sides` are the merged runs of A and of B with the server's metrics. `totals` are those without. Both are empty
    without a complete round. `gates` are the results of B's gates, and `accepted` states that a gate on `error_rate`
    decides about failures and passes for both sides. `rows` are the mean numbers of rows per request of the sides, and
    `prices` those of their machines, or empty. `interrupted` states that Ctrl-C or SIGTERM ended the comparison.
    `parity` compares the responses before the load, or is None if a side recorded none.
    """

    names: tuple[str, str]
    rounds: Sequence[tuple[Measured, Measured]]
    comparison: Comparison | None
    limits: tuple[str, ...]
    strict: bool
    fail_if_unclear: bool
    sides: tuple[Watched, ...] = ()
    totals: tuple[SideTotal, ...] = ()
    gates: tuple[GateResult, ...] = ()
    accepted: bool = False
    rows: tuple[float, float] = (1.0, 1.0)
    prices: tuple[Price, ...] = ()
    interrupted: bool = False
    parity: Parity | None = None

    @property
    def parity_note(self) -> str:
        """How B's responses to single requests differ from A's; empty if they match or are unknown."""
        if self.parity is None or not (self.parity.signature or self.parity.different):
            return ""
        return f"B compared with A, before the load: {self.parity.summary}"

    @property
    def spendings(self) -> tuple[Spending, ...]:
        """The cost and the energy of A and B, at the rates of the comparison, or an empty tuple without one."""
        if self._rate is None:
            return ()
        prices = self.prices or (None, None)
        energies = [watched.energy for watched in self.sides] or [None, None]
        rates = [side.measured.rate_per_s for side in self.totals]
        return tuple(map(Spending, rates, self.rows, prices, energies))

    @property
    def cost_ratio(self) -> Ratio | None:
        """The cost of a million predictions of A and B, and the ratio with its interval; None if it is unknown.

        The interval is that of the rate. Prices and rows are exact.
        """
        rate, costs = self._rate, [spending.per_million_predictions for spending in self.spendings]
        if rate is None or len(costs) < 2 or costs[0] is None or costs[1] is None or rate.low <= 0:
            return None
        at_same_rate = costs[1] / costs[0] * rate.ratio
        return Ratio(costs[0], costs[1], costs[1] / costs[0], at_same_rate / rate.high, at_same_rate / rate.low)

    @property
    def _rate(self) -> Ratio | None:
        return self.comparison.rate if self.comparison else None

    @property
    def difference(self) -> str:
        """The parts in which B's latency differs from A's; empty if B is the same, or if the parts are unknown."""
        if self.comparison is None or self.comparison.verdict is Verdict.SAME or not self.sides:
            return ""
        return changes(*self.sides)

    @property
    def where(self) -> str:
        return f"B compared with A: {self.difference}" if self.difference else ""

    @property
    def server_notes(self) -> tuple[str, ...]:
        """Reasons for missing server metrics. A reason that applies to both sides appears once."""
        found = [watched.note for watched in self.sides]
        if len(set(found)) <= 1:
            return tuple(note for note in found[:1] if note)
        return tuple(f"{side}: {note}" for side, note in zip("AB", found, strict=True) if note)

    @property
    def failures(self) -> int:
        """The number of failed requests of both sides."""
        return sum(side.measured.total.failures for side in self.totals)

    @property
    def problems(self) -> tuple[str, ...]:
        """The failures of each side that has any, B first because the comparison judges B."""
        return tuple(side.problem for side in reversed(self.totals) if side.problem)

    @property
    def limit_note(self) -> str:
        """The first reason why the generator was the limit, with the number of others; empty if it never was."""
        others = f" (and {counted(len(self.limits) - 1, 'similar limit')})" if len(self.limits) > 1 else ""
        return f"{NOT_TRUSTED}: {self.limits[0]}{others}" if self.limits else ""

    @property
    def words(self) -> str:
        """The verdict in words, with a note on the load; empty after too few rounds."""
        return self.rounds[0][0].load.qualify(VERDICTS[self.comparison.verdict]) if self.comparison else ""

    @property
    def unjudged(self) -> tuple[str, ...]:
        omitted = self.comparison.omitted if self.comparison else ()
        return (f"not judged, because too few requests succeeded: {', '.join(omitted)}",) if omitted else ()

    @property
    def unclear(self) -> tuple[str, ...]:
        """The unclear figures in a sentence, or an empty tuple."""
        figures = self.comparison.figures if self.comparison else ()
        found = [each for each in figures if each.verdict is Verdict.UNCLEAR]
        scarce = ", ".join(each.name for each in found if each.scarce)
        worse = ", ".join(f"{each.name} {_worse(each)}" for each in found if not each.scarce)
        parts = [f"B may be worse, with 95 % confidence: {worse}"] if worse else []
        parts += [f"too few requests for {scarce}"] if scarce else []
        return (f"{'; '.join(parts)}; {_REMEDY}",) if parts else ()

    @property
    def exit_code(self) -> int:
        is_worse = self.comparison is not None and self.comparison.verdict is Verdict.WORSE
        is_unclear = self.comparison is None or bool(self.fail_if_unclear and self.unclear)
        return exit_code(
            generator=self.strict and bool(self.limits),
            gate=is_worse or any(result.failed for result in self.gates),
            failed=bool(self.failures) and not self.accepted,
            interrupted=self.interrupted,
            evidence=is_unclear or any(result.shortfall for result in self.gates),
        )

    @property
    def too_few(self) -> str:
        words = "Interrupted" if self.interrupted else "Stopped"
        return f"{words} after {counted(len(self.rounds), 'complete round')}, too few for a result"

    @property
    def cases(self) -> list[Case]:
        return [
            Case(ENDED, error=f"interrupted after {counted(len(self.rounds), 'round')}" if self.interrupted else ""),
            Case("there are enough rounds", error="" if self.comparison else self.too_few),
            Case(ANSWERED, "" if self.accepted else "\n".join(self.problems)),
            Case(GENERATOR, "\n".join(self.limits) if self.strict else ""),
            *(self._case(name) for name in self._judged),
            self._failures_case(),
            *(result.case for result in self.gates),
        ]

    @property
    def _judged(self) -> Sequence[str]:
        figures = self.comparison.figures if self.comparison else ()
        return tuple(dict.fromkeys((*FIGURES, *(each.name for each in figures))))

    def _failures_case(self) -> Case:
        title = "failures of B are not worse"
        failures = self.comparison.failures if self.comparison else None
        if failures is None:
            return Case(title, skipped="too few rounds")
        _, a, b, difference, interval, verdict = failure_cells(failures)
        problem = f"{FAILED} of B are {verdict}: A {a}, B {b}, difference {difference} ({interval})"
        return Case(title, problem if failures.verdict is Verdict.WORSE else "")

    def _case(self, name: str) -> Case:
        title = f"{name} of B is not worse"
        figure = (
            next((each for each in self.comparison.figures if each.name == name), None) if self.comparison else None
        )
        if figure is None:
            return Case(title, skipped="too few requests" if self.comparison else "too few rounds")
        if figure.verdict is Verdict.UNCLEAR:
            words = _explain(figure)
            return Case(title, skipped=words, error=words if self.fail_if_unclear else "")
        _, a, b, ratio, interval, verdict = comparison_cells(figure)
        problem = f"{name} of B is {verdict}: A {a}, B {b}, ratio {ratio} ({interval})"
        where = f"; {self.where}" if self.where else ""
        return Case(title, f"{problem}{where}" if figure.verdict is Verdict.WORSE else "")


def judge_comparison(
    names: tuple[str, str],
    rounds: Sequence[tuple[Measured, Measured]],
    rules: Rules | None = None,
    *,
    sides: tuple[Watched, ...] = (),
    rows: tuple[float, float] = (1.0, 1.0),
    prices: tuple[Price, ...] = (),
    interrupted: bool = False,
    parity: Parity | None = None,
) -> ComparisonOutcome:
    """Judge the rounds. The gates apply to B. `rows` and `prices` are for the cost."""
    rules = rules or Rules()
    is_open = any(a.load.is_open for a, _ in rounds)
    enough = len(rounds) >= LEAST_ROUNDS
    comparison = compare([_round(*each) for each in rounds], rules.least_effect, is_open=is_open) if enough else None
    runs = [measured for each in rounds for measured in each]
    limits = {limit: None for measured in runs for limit in judge_generator(measured, rules.gates).limits}
    totals = tuple(
        SideTotal(letter, name, together(runs))
        for letter, name, runs in zip(SIDES, names, zip(*rounds, strict=True), strict=False)
    )
    return ComparisonOutcome(
        names,
        rounds,
        comparison,
        tuple(limits),
        rules.strict,
        rules.fail_if_unclear,
        sides,
        totals,
        gates=rules.results(totals[1].measured) if totals else (),
        accepted=_accepts_failures(rules.gates, totals),
        rows=rows,
        prices=prices,
        interrupted=interrupted,
        parity=parity,
    )


def _round(a: Measured, b: Measured) -> Round:
    lines = [name for name in a.recorder.lines if name in b.recorder.lines]
    return Round(_sample(a), _sample(b), {name: (_sample(a, name), _sample(b, name)) for name in lines})


def _sample(measured: Measured, line: str | None = None) -> Sample:
    tally = measured.total if line is None else measured.recorder.tally(line)
    completed = round(measured.rate_per_s * measured.span_s)  # the rates of lines are not judged
    return Sample(*tally.histogram.recorded(), completed, measured.span_s, tally.failures)


def _accepts_failures(gates: tuple[Threshold, ...], totals: Sequence[SideTotal]) -> bool:
    of_errors = tuple(gate for gate in gates if gate.metric == "error_rate")
    results = [result for side in totals for result in Lines().results(of_errors, side.measured)]
    return bool(results) and not any(result.failed for result in results)


_REMEDY = "run longer, increase --rounds, or set a larger --least-effect"


def _explain(figure: Figure) -> str:
    if figure.scarce:
        return f"{figure.name} of B is unclear: too few requests; {_REMEDY}"
    return f"{figure.name} of B may be {_worse(figure)} worse, with 95 % confidence; {_REMEDY}"


def _worse(figure: Figure) -> str:
    return f"{100 * (figure.at_worst - 1):.3g} %"


def comparison_cells(figure: Figure) -> list[str]:
    """Format the cells for a terminal: name, A, B, their ratio, its interval, verdict."""
    ratio = figure.ratio
    values = [f"{value:,.1f}/s" if figure.name == RATE else f"{value / 1000:.2f} ms" for value in (ratio.a, ratio.b)]
    name = f"{figure.part} of the requests" if figure.part else figure.name
    return [name, *values, f"{ratio.ratio:.3f}", _interval(ratio), str(figure.verdict)]


def _interval(ratio: Ratio) -> str:
    # The interval of three rounds can span many powers of ten.
    return f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.high < _WIDE else f"{ratio.low:.2g} to {ratio.high:.2g}"


def failure_cells(failures: Failures) -> list[str]:
    """Format the cells of the failures: name, A, B, the difference in percentage points, its interval, verdict."""
    shares = failures.shares
    points = [f"{100 * each:+.3g}" for each in (shares.difference, shares.low, shares.high)]
    interval = f"{points[1]} to {points[2]} points"
    return [FAILED, percent(shares.a), percent(shares.b), f"{points[0]} points", interval, str(failures.verdict)]


def cost_cells(outcome: ComparisonOutcome) -> list[str]:
    """Format the cells of the cost: name, A, B, their ratio, its interval, and no verdict; empty without a cost."""
    ratio = outcome.cost_ratio
    if ratio is None:
        return []
    costs = [three_significant(cost) for cost in (ratio.a, ratio.b)]
    name = f"{outcome.prices[0].currency} per million"
    return [name, *costs, f"{ratio.ratio:.3f}", _interval(ratio), "-"]
