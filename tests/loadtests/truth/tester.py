"""Runs of `tpuserve loadtest` against the scripted server, and their judgement by the server's log."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from tests.loadtests.truth.machine import MachineWatch
from tests.loadtests.truth.request_log import OK, Log, percentile
from tests.loadtests.truth.row import PERCENTILES, Pair, Row
from tests.loadtests.truth.script import OF_VALUES, REFUSALS, Fault, Script, Wrong
from tests.loadtests.truth.scripted_server import ScriptedServer, serving
from tests.support import forked_command

MODEL: Final = "doubling"
TAKES: Final = 3
_WITH_GOLDEN: Final = ("run", "sweep", "search", "soak", "compare", "mlperf")

# "oip" is gRPC and HTTP with binary tensors, "oip_json" is gRPC and HTTP with JSON.
Protocol = Literal["grpc", "rest", "both", "oip", "oip_json"]
Document = dict[str, Any]  # a report's JSON


@dataclass(frozen=True, slots=True)
class Said:
    """The report of a run. `machine` is a reason of the machine to distrust its figures, if any."""

    document: Any  # a report's JSON, of a type that depends on the command
    exit_code: int
    errors: str
    machine: str = ""


def loadtest(*arguments: str, constants: Mapping[str, float] | None = None) -> Said:
    """Run a command to its end. Metrics of the server and golden responses are off unless the arguments set them.

    `constants` are as in forked_command.run.
    """
    metrics = () if "--server-metrics" in arguments else ("--server-metrics", "off")
    golden = () if "--golden" in arguments or arguments[0] not in _WITH_GOLDEN else ("--golden", "off")
    watch = MachineWatch()
    ended = forked_command.run("tpuserve-loadtest", *arguments, *metrics, *golden, "--json", constants=constants)
    assert ended.stdout, ended.stderr
    return Said(json.loads(ended.stdout), ended.returncode, ended.stderr, watch.reason())


def addresses(server: ScriptedServer, protocol: Protocol) -> tuple[str, ...]:
    """Return the address options for a protocol."""
    grpc, rest = ("--grpc", server.grpc), ("--rest", server.rest)
    oip = ("--grpc", f"oip+grpc://{server.grpc}")
    return {
        "grpc": grpc,
        "rest": rest,
        "both": (*grpc, *rest),
        "oip": (*oip, "--rest", f"oip+{server.rest}"),
        "oip_json": (*oip, "--rest", f"oip-json+{server.rest}"),
    }[protocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of `tpuserve loadtest run` against a script. `planned` are the arrivals of an open load.

    `files` writes files into a directory and returns further options. `apart` is the number of requests before the
    load, such as those of `--golden record`. `percents` are the percentiles to judge, none for a case of counts alone.
    `requests` is the number of measured requests that the options require, if any. With `dies`, the server cannot read
    all requests. With `ends_early`, the load ends before its time.
    """

    shape: str
    behaviour: str
    script: Script
    options: tuple[str, ...]
    protocol: Protocol = "grpc"
    planned: Sequence[float] | None = None
    files: Callable[[Path], tuple[str, ...]] = lambda folder: ()
    model: tuple[str, ...] = (MODEL,)
    apart: int = 0
    exit_code: int = 0
    percents: tuple[int, ...] = PERCENTILES
    requests: int = 0
    dies: bool = False
    ends_early: bool = False

    @property
    def name(self) -> str:
        """A name for test ids."""
        return f"{self.shape}, {self.behaviour}"


def settle(name: str, attempt: Callable[[], list[Row]], patience: int = 1) -> list[Row]:
    """Repeat a run until its figures are right, at most TAKES times, or `patience` times if it has an excuse.

    Wrong counts end it at once.
    """
    for take in range(1, TAKES + 1):
        rows = [replace(row, takes=take) for row in attempt()]
        wrong = [row for row in rows if row.wrong_figures]
        if (
            any(row.wrong_counts for row in rows)
            or not wrong
            or (take >= patience and all(row.excuse for row in wrong))
        ):
            break
        for row in wrong:
            print(f"take {take} of {name}: {'; '.join(row.wrong_figures)}: {row.excuse}")
    return rows


def measure(case: Case, folder: Path, patience: int = 1) -> Row:
    """Run a case as `settle` does."""
    (row,) = settle(case.name, lambda: [_take(case, folder)], patience)
    return row


def _take(case: Case, folder: Path) -> Row:
    with serving(case.script) as server:
        options = (*addresses(server, case.protocol), *case.options, *case.files(folder))
        said = loadtest("run", *case.model, *options)
        log = server.end()
    return judge(case, said, log[case.apart :])


def judge(case: Case, said: Said, log: Log) -> Row:
    """Compare a run's report with the log of its requests."""
    total: Document = said.document["total"]
    generator: Document = said.document["generator"]
    warm_up = said.document["warm_up_requests"]
    counted = log[warm_up:]
    planned = None if case.planned is None else len(case.planned)
    sent = planned if case.dies and planned is not None else len(log)
    # The log has both attempts of a refused request, but none of the requests that a closing connection refuses.
    retries = total["retries"] if log.statuses[Fault.REFUSED] else 0
    counts = {
        "sent": Pair(total["requests"] + retries + warm_up, sent),
        "errors": Pair(total["failures"] + retries, sent - warm_up - len(counted.ok)),
        **_wrong_answers(total, counted),
        # At the end of a warm-up, requests of two lines can arrive in another order than they were due.
        **({} if case.dies or warm_up or retries else _lines(said.document, counted)),
        **_refusals(said.document, counted),
    }
    if case.requests:
        counts["required"] = Pair(total["requests"], case.requests)
    if planned is not None:
        counts["dropped"] = Pair(generator["dropped"], 0 if case.ends_early else planned - sent)
    return Row(
        shape=case.shape,
        behaviour=case.behaviour,
        planned=planned,
        logged=len(log),
        counts=counts,
        close=_percentiles(case, total, log, warm_up),
        exit_code=said.exit_code,
        expected_exit=case.exit_code,
        floors=floors(counted, case.percents),
        reasons=tuple(generator["limits"]),
        lateness_ms=_outside_freeze(log, case.script).lateness_ms,
        machine=said.machine,
    )


def _outside_freeze(log: Log, script: Script) -> Log:
    """Return the requests whose response was not due while the script stopped the server."""
    if not script.freeze_s:
        return log
    start_s = log.entries[0].arrived_s + script.freeze_at_s
    return log.where(lambda entry: not 0 <= entry.due_s - start_s <= script.freeze_s)


def _percentiles(case: Case, total: Mapping[str, Any], log: Log, warm_up: int) -> dict[str, Pair]:
    if case.planned is not None and len(log) == len(case.planned):
        is_single = "--processes" not in case.options
        latencies = log.latencies_from_ms(case.planned, warm_up) if is_single else log.latencies_of_two_ms(case.planned)
    else:
        latencies = log[warm_up:].latencies_ms()
    return percentiles(total, latencies, case.percents)


def percentiles(
    said: Mapping[str, Any], latencies_ms: Sequence[float], percents: Sequence[int] = PERCENTILES
) -> dict[str, Pair]:
    """Return the reported percentiles and those of the true latencies."""
    return {
        f"p{percent}": Pair(said[f"p{percent}_ms"], percentile(latencies_ms, percent) if latencies_ms else None)
        for percent in percents
    }


def floors(log: Log, percents: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """Return the percentiles of the server's own latencies."""
    latencies_ms = log.latencies_ms()
    return {f"p{percent}": percentile(latencies_ms, percent) for percent in percents if latencies_ms}


def _wrong_answers(total: Mapping[str, Any], log: Log) -> dict[str, Pair]:
    """Return the responses with a wrong form, and the others if all were compared with golden responses."""
    wrong = sum(log.statuses[kind] for kind in Wrong)
    malformed = wrong - sum(log.statuses[kind] for kind in OF_VALUES)
    found = {"malformed": Pair(total["malformed"], malformed)}
    if total["checked"]:
        found["wrong"] = Pair(total["wrong"], wrong)
        found["checked"] = Pair(total["checked"], wrong - malformed + log.statuses[OK])
    return found


def _lines(document: Document, log: Log) -> dict[str, Pair]:
    """Return the requests of each protocol, or of each line of a scenario, and its failures."""
    found: dict[str, Pair] = {}
    sums: dict[str, Counter[str]] = {}
    for name, line in (document.get("protocols") or document["lines"]).items():
        # The log knows no numbers of rows, which divide the lines of a scenario.
        counts = {key: line[key] for key in ("requests", "failures")}
        sums.setdefault(name.partition(",")[0], Counter()).update(counts)
    for name, counted in sums.items():
        model, _, protocol = name.rpartition(" ")
        own = log.of(protocol.lower(), model)
        found[f"{name} sent"] = Pair(counted["requests"], len(own))
        found[f"{name} errors"] = Pair(counted["failures"], own.failed)
    return found


def _refusals(document: Document, log: Log) -> dict[str, Pair]:
    """Return the failures whose message is the server's own, by kind."""
    found = {}
    for kind in sorted(REFUSALS & log.statuses.keys()):
        said = sum(error["count"] for error in document["errors"] if error["message"].endswith(f"scripted: {kind}"))
        found[kind.value] = Pair(said, log.statuses[kind])
    return found
