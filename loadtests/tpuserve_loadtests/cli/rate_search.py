"""The highest rate that keeps objectives, searched for on a server, and what ended the search otherwise."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpuserve_loadtests.cli.loads import open_load, run_load
from tpuserve_loadtests.exit_codes import EXIT_FAILED, EXIT_GENERATOR

if TYPE_CHECKING:
    from tpuserve_loadtests.arrivals.load import Load
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.searching import Found, Probe
    from tpuserve_loadtests.traffic.engine import Runs

# A user alone tells where to begin: at half of what it gets.
_FIRST_S = 2.0


@dataclass(frozen=True, slots=True)
class Searched:
    """`found` is None where the search did not end; `problem` says why, `exit_code` how bad that is."""

    found: "Found | None"
    probes: "list[tuple[Probe, Measured]]"
    problem: str = ""
    exit_code: int = 0


def search_rate(runs: "Runs", given: dict[str, Any], objectives: "tuple[Threshold, ...]") -> Searched:
    """Try rates as the options say (`start`, `highest`, `precision` and those of open loads)."""
    from tpuserve_loadtests.reports.search_report import print_probe
    from tpuserve_loadtests.searching import Found, search
    from tpuserve_loadtests.traffic.trials import GeneratorLimit, Interrupted, NothingAnswered, Trials

    trials = Trials(
        lambda load: _run(runs, load, objectives),
        open_load("1", given),
        objectives,
        trust_generator=given["generator_limit"] == "note",
        on_probe=print_probe,
    )
    try:
        alone = _alone(runs, given)
        trials.check(alone)
        if missed := trials.missed_by(alone):
            return Searched(Found(None, None), trials.probes, "; ".join(missed))
        start = given["start"] or max(alone.rate_per_s / 2, 1.0)
        return Searched(search(trials.attempt, start, given["highest"], given["precision"]), trials.probes)
    except Interrupted:
        return Searched(None, trials.probes, "interrupted", EXIT_FAILED)
    except NothingAnswered as nothing:
        return Searched(None, trials.probes, str(nothing), EXIT_FAILED)
    except GeneratorLimit as limit:
        return Searched(None, trials.probes, str(limit), EXIT_GENERATOR)


def _run(runs: "Runs", load: "Load", objectives: "tuple[Threshold, ...]") -> "Measured":
    from tpuserve_loadtests.judgement.hopeless import limits_us

    gates = tuple(objective.opposite for objective in objectives)
    return run_load(runs, replace(load, limits_us=limits_us(gates)), gates, "Trying for")


def _alone(runs: "Runs", given: dict[str, Any]) -> "Measured":
    """One user of each line, who wait for nobody: what is too slow for them is at any rate."""
    from tpuserve_loadtests.arrivals.load import Load

    load = Load(_FIRST_S, min(given["warm_up"], _FIRST_S), users=len(runs.lines))
    return run_load(runs, load, title="First, for")
