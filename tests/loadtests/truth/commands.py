"""Rows of the commands that run several loads: sweep, search, soak, compare and mlperf."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

from tests.loadtests.truth.request_log import Log
from tests.loadtests.truth.row import PERCENTILES, TOLERANCE, Pair, Row
from tests.loadtests.truth.script import Fault, Script
from tests.loadtests.truth.scripted_server import serving
from tests.loadtests.truth.tester import MODEL, Said, loadtest, percentiles

_COLD: Final = ("--warm-up", "0")
_GENERATOR: Final = 98
_GATE: Final = 99
_SOAK_S: Final = 6.0


def sweep() -> list[Row]:
    """Sweep closed users over a server with four slots, beyond its capacity."""
    script = Script(service_s=0.036, spread_s=0.008, slots=4)
    users = (2, 4, 16)
    with serving(script) as server:
        options = ("--users", ",".join(map(str, users)), "--duration", "1500ms", "--warm-up", "300ms")
        said = loadtest("sweep", MODEL, "--grpc", server.grpc, *options)
        log = server.end()
    steps = said.document["steps"]
    rows, ends = [], _ends(steps)
    for number, (step, (first, last)) in enumerate(zip(steps, pairwise(ends), strict=True)):
        part, warm_up = log[first:last], step["warm_up_requests"]
        measured = part[warm_up:]
        rows.append(
            Row(
                shape=f"sweep, {users[number]} users",
                behaviour="gRPC, 4 slots, 100/s",
                planned=None,
                logged=len(part),
                counts={
                    "sent": Pair(step["total"]["requests"] + warm_up, len(part)),
                    "errors": Pair(step["total"]["failures"], part.failed),
                    "all": Pair(ends[-1], len(log)),
                },
                close={
                    **percentiles(step["total"], measured.latencies_ms()),
                    "rate": Pair(step["total"]["rate_per_s"], part.rate_per_s(step["warm_up_s"], step["elapsed_s"])),
                },
                exit_code=step["exit_code"],
                expected_exit=0,
                reasons=tuple(step["generator"]["limits"]),
                lateness_ms=part.lateness_ms,
                machine=said.machine,
            )
        )
    return rows


def _ends(steps: Sequence[dict[str, Any]]) -> list[int]:
    """Return where the requests of each step begin in the log, and the end of the last one.

    A step begins after the last response of the one before.
    """
    return [0, *accumulate(step["total"]["requests"] + step["warm_up_requests"] for step in steps)]


def search(folder: Path) -> list[Row]:
    """Search for the capacity of 16 slots: 400 requests per second, each of 40 ms.

    Beyond the capacity, a queue grows. At 403/s, it delays the last tenth of a trial by 10 ms, which is the limit.
    """
    script, capacity = Script(service_s=0.040, slots=16), 400.0
    table = folder / "search.csv"
    with serving(script) as server:
        options = ("--from", "150", "--precision", "0.04", "--duration", "1500ms", "--arrivals", "constant")
        said = loadtest(
            "search", MODEL, "--grpc", server.grpc, "--slo", "p90<=50ms", *options, *_COLD, "--csv", str(table)
        )
        log = server.end()
    document = said.document
    best, ceiling = document["rate_per_s"], document["does_not_hold_per_s"]
    problem, was_limit = document["problem"], said.exit_code == _GENERATOR
    misjudged = [problem] if problem and not was_limit else []
    if not problem and not (best and ceiling and best <= capacity * 1.03 and ceiling >= capacity * 0.97):
        misjudged.append(f"capacity {capacity:g}/s is not between {best} and {ceiling}")
    misjudged += [
        f"{probe['rate_per_s']:.1f}/s {probe['outcome']}: {probe['reason']}"
        for probe in document["probes"]
        if not problem
        and (probe["outcome"] == "holds") is not (probe["rate_per_s"] <= capacity)
        and abs(probe["rate_per_s"] / capacity - 1) > TOLERANCE
    ]
    rows = list(csv.DictReader(table.read_text().splitlines()))
    return [
        Row(
            shape="search, p90<=50ms",
            behaviour="gRPC, 16 slots, 400/s",
            planned=None,
            logged=len(log),
            counts={"trials": Pair(len(rows), len(document["probes"]))},
            close={"capacity": Pair(None if best is None else (best * ceiling) ** 0.5, capacity)},
            exit_code=said.exit_code,
            expected_exit=0,
            misjudged=tuple(misjudged),
            reasons=(problem,) if problem and was_limit else (),
            lateness_ms=log.lateness_ms,
            machine=said.machine,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """A soak of six seconds, and the course of its figures that the script causes."""

    behaviour: str
    script: Script
    options: tuple[str, ...]
    courses: dict[str, str]

    @property
    def verdict(self) -> str:
        """The verdict that the courses require."""
        return "drifting" if "drifting" in self.courses.values() else "steady"


SOAKS: Final = (
    Soak(
        behaviour="REST, steady",
        script=Script(service_s=0.020, spread_s=0.010),
        options=("--users", "6"),
        courses={"p50_ms": "steady", "rate_per_s": "steady", "error_rate": "steady"},
    ),
    Soak(
        behaviour="REST, latency and memory leak",
        script=Script(service_s=0.020, spread_s=0.010, growth=0.004, leak_bytes=50_000),
        options=("--users", "6"),
        courses={"p50_ms": "drifting", "memory_bytes": "drifting", "error_rate": "steady"},
    ),
    Soak(
        behaviour="REST, latency leak, constant rate",
        script=Script(service_s=0.020, spread_s=0.010, growth=0.004),
        options=("--rate", "150", "--arrivals", "constant"),
        courses={"p50_ms": "drifting", "error_rate": "steady"},
    ),
)


def soak(case: Soak) -> list[Row]:
    """Soak the script for a few seconds."""
    with serving(case.script) as server:
        options = ("--rest", server.rest, "--server-metrics", "auto", "--duration", f"{_SOAK_S:g}s", *_COLD)
        brief = {"tpuserve_loadtests.cli.commands.LEAST_SOAK_S": _SOAK_S}
        said = loadtest("soak", MODEL, *options, *case.options, constants=brief)
        log = server.end()
    document = said.document
    segments = sum(segment["requests"] for segment in document["segments"])
    courses = {drift["figure"]: drift["course"] for drift in document["drifts"]}
    is_unclear = document["verdict"] == "unclear"
    return [
        Row(
            shape="soak, 48 segments",
            behaviour=case.behaviour,
            planned=None,
            logged=len(log),
            counts={
                "sent": Pair(document["total"]["requests"], len(log)),
                "errors": Pair(document["total"]["failures"], log.failed),
                "segments": Pair(segments, len(log)),
            },
            # The users of each segment start together, which shows in p99 of segments of an eighth of a second.
            close=percentiles(document["total"], log.latencies_ms(), (50, 90)),
            exit_code=said.exit_code,
            expected_exit=_GATE if case.verdict == "drifting" else 0,
            findings=_contradictions(document["drifts"]),
            misjudged=_misjudged(case, courses),
            reasons=(*document["generator"]["limits"], *(["the verdict is unclear"] * is_unclear)),
            lateness_ms=log.lateness_ms,
            machine=said.machine,
        )
    ]


def _misjudged(case: Soak, courses: Mapping[str, str]) -> tuple[str, ...]:
    """Return the wrong courses. Figures that the case does not name may drift only in a script that drifts."""
    wrong = [
        f"{figure} is {courses[figure]}, expected {course}"
        for figure, course in case.courses.items()
        if courses[figure] not in (course, "unclear")
    ]
    unnamed = courses.keys() - case.courses.keys() if case.verdict == "steady" else ()
    drifting = [f"{figure} is drifting, expected no drift" for figure in unnamed if courses[figure] == "drifting"]
    return (*wrong, *drifting)


def _contradictions(drifts: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the drifts whose interval includes no change."""
    return tuple(
        f"{drift['figure']} is drifting, but its interval {drift['interval']} includes no change"
        for drift in drifts
        if drift["course"] == "drifting" and drift["interval"][0] < 0 < drift["interval"][1]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two scripts, and the verdict on B that they require. With `is_certain`, no busy machine can change it."""

    behaviour: str
    a: Script
    b: Script
    verdict: str
    exit_code: int
    is_certain: bool = False


_QUICK: Final = Script(service_s=0.025, spread_s=0.008)
COMPARISONS: Final = (
    Comparison(behaviour="gRPC, the same", a=_QUICK, b=_QUICK, verdict="same", exit_code=0),
    Comparison(
        behaviour="gRPC, B 30 % slower",
        a=_QUICK,
        b=Script(service_s=0.033, spread_s=0.010),
        verdict="worse",
        exit_code=_GATE,
    ),
    Comparison(
        behaviour="gRPC, B fails 5 %",
        a=_QUICK,
        b=Script(service_s=0.025, spread_s=0.008, faults={Fault.INTERNAL: 20}),
        verdict="worse",
        exit_code=_GATE,
        is_certain=True,
    ),
)


def compare(case: Comparison, folder: Path) -> list[Row]:
    """Compare two servers, and return a row for each side."""
    table = folder / "compare.csv"
    with serving(case.a) as a, serving(case.b) as b:
        options = ("--users", "24", "--rounds", "6", "--duration", "600ms", *_COLD)
        said = loadtest("compare", MODEL, a.grpc, b.grpc, *options, "--csv", str(table))
        logs = {"A": a.end(), "B": b.end()}
    runs = list(csv.DictReader(table.read_text().splitlines()))
    return [_side(case, said, side, log, [run for run in runs if run["side"] == side]) for side, log in logs.items()]


def _side(case: Comparison, said: Said, side: str, log: Log, runs: Sequence[dict[str, str]]) -> Row:
    figures, verdict = said.document["figures"], said.document["verdict"]
    # A percentile that falls among the failed requests of either side is not compared.
    known = (50, 99) if "p99" in figures else (50,)
    # A comparison of equal scripts may lack the requests for a verdict on a slow machine, and reports this.
    is_unclear = verdict == "unclear" and case.verdict == "same"
    is_right = is_unclear or verdict == case.verdict
    misjudged = () if is_right else (f"verdict {verdict}, expected {case.verdict}",)
    return Row(
        shape=f"compare, side {side}",
        behaviour=case.behaviour,
        planned=None,
        logged=len(log),
        counts={
            "sent": Pair(sum(int(run["requests"]) for run in runs), len(log)),
            "errors": Pair(sum(int(run["failures"]) for run in runs), log.failed),
        },
        close=percentiles(
            {f"p{percent}_ms": figures[f"p{percent}"][side.lower()] for percent in known}, log.latencies_ms(), known
        ),
        exit_code=said.exit_code,
        expected_exit=case.exit_code,
        findings=misjudged if case.is_certain else (),
        misjudged=() if case.is_certain else misjudged,
        reasons=(*said.document["generator_limits"], *(["the verdict is unclear"] * is_unclear)),
        lateness_ms=log.lateness_ms,
        machine=said.machine,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlperf:
    """A scenario of MLPerf, too short for its rules and therefore INVALID."""

    scenario: str
    options: tuple[str, ...]
    rows: int = 1
    percents: tuple[int, ...] = PERCENTILES


MLPERF: Final = (
    # With so few requests, p99 is the first one, which opens the connection.
    Mlperf(scenario="single-stream", options=(), percents=(50, 90)),
    Mlperf(scenario="multi-stream", options=(), rows=8, percents=(50, 90)),
    Mlperf(scenario="server", options=("--latency", "100ms", "--target-qps", "200")),
    Mlperf(scenario="offline", options=("--users", "8", "--rows", "32"), rows=32),
)


def mlperf(case: Mlperf) -> list[Row]:
    """Run a scenario for a second and a half."""
    with serving(Script(service_s=0.040, spread_s=0.010)) as server:
        options = ("--scenario", case.scenario, *case.options, "--duration", "1500ms", *_COLD)
        said = loadtest("mlperf", MODEL, "--grpc", server.grpc, *options)
        log = server.end()
    document = said.document
    latencies = {f"p{percent}_ms": ns / 1e6 for percent, ns in document["latency_ns"].items()}
    failed = [each for each in document["constraints"] if "failed" in each["detail"]]
    kept_up = [each["detail"] for each in document["constraints"] if each["name"] == "Load generator kept up"]
    return [
        Row(
            shape=f"mlperf {case.scenario}",
            behaviour="gRPC, varying",
            planned=None,
            logged=len(log),
            counts={
                "sent": Pair(document["queries"], len(log)),
                "samples": Pair(document["samples"], case.rows * len(log)),
                "errors": Pair(float(failed[0]["detail"].split()[0]), log.failed),
            },
            close=percentiles(latencies, log.latencies_ms(), case.percents),
            exit_code=said.exit_code,
            expected_exit=_GATE,
            reasons=tuple(detail for detail in kept_up if detail != "not the limit"),
            lateness_ms=log.lateness_ms,
            machine=said.machine,
        )
    ]


def named(folder: Path) -> dict[str, Callable[[], list[Row]]]:
    """Return all rows' functions by name."""
    return {
        "sweep": sweep,
        "search": partial(search, folder),
        **{f"soak, {case.behaviour}": partial(soak, case) for case in SOAKS},
        **{f"compare, {case.behaviour}": partial(compare, case, folder) for case in COMPARISONS},
        **{f"mlperf {case.scenario}": partial(mlperf, case) for case in MLPERF},
    }
