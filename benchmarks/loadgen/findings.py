"""Servers that mislead a load test, and what it should report: one finding for each row of `loadtest truth`.

Each server keeps its own record (tests/loadtests/truth), which is the truth of the row.
"""

import json
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np

from tests.loadtests.truth.request_log import Log
from tests.loadtests.truth.script import Fault, Script, Wrong
from tests.loadtests.truth.scripted_server import ScriptedServer, serving

MODEL: Final = "doubling"
PASSED, FAILED, USAGE, EVIDENCE, GATE, INTERRUPTED = 0, 1, 2, 97, 99, 130
_QUICK: Final = Script(service_s=0.008, spread_s=0.004)
# The machine may be busy. These rows are not about the load generator.
_NOTE: Final = ("--generator-limit", "note")
_COLD: Final = ("--warm-up", "0")
_GATES: Final = ("--fail-if", "p99>500ms", "error_rate>5%")


@dataclass(frozen=True, slots=True)
class Seen:
    """The verdict on a server. `record` is the server's own record, in words."""

    record: str
    verdict: str
    exit_code: int | None
    is_right: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended, with its report if it printed one."""

    exit_code: int
    output: str
    errors: str

    @property
    def document(self) -> Any:  # noqa: ANN401  a report, whose type depends on the command
        """The JSON report, or an empty document."""
        try:
            return json.loads(self.output)
        except ValueError:
            return {}

    @property
    def verdict(self) -> str:
        """The verdict in words: that of the report, or the last line of a refusal."""
        document = self.document
        if document:
            words = document.get("verdict") or ("passed" if self.exit_code == 0 else "not passed")
            return str(words)
        return (self.output or self.errors).strip().splitlines()[-1][:100] if self.output or self.errors else "nothing"

    def said(self, *words: str) -> bool:
        """Return whether the report contains one of the words."""
        return any(word in self.output.lower() for word in words)


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment with the load tester, by its Python."""

    python: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of `tpuserve loadtest` with these arguments."""
        return [str(self.python.with_name("tpuserve-loadtest")), *arguments]

    def run(self, *arguments: str, limit_s: float = 180.0) -> Ended:
        """Run a command to its end, without the metrics of a server."""
        metrics = () if "--server-metrics" in arguments else ("--server-metrics", "off")
        command = self.command(*arguments, *metrics)
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)

    def generated(self, row: str, trials: int) -> dict[str, Any]:
        """Judge generated series by the environment's own rules, and count the verdicts."""
        command = [str(self.python), str(Path(__file__).with_name("generated.py")), row, str(trials)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {f"broken: {done.stderr.strip().splitlines()[-1][:80]}": trials}
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@dataclass(frozen=True, slots=True)
class Finding:
    """A row: a behaviour, the verdict that it deserves, and a function that obtains one. Chance rows are generated."""

    name: str
    should: str
    judge: Callable[[Environment], Seen]
    is_chance: bool = False


def _run(environment: Environment, server: ScriptedServer, *options: str, protocol: str = "grpc") -> Ended:
    address = server.grpc if protocol == "grpc" else server.rest
    return environment.run("run", MODEL, f"--{protocol}", address, *options, *_NOTE, "--json")


def _unrecorded(environment: Environment, server: ScriptedServer, *options: str) -> Ended:
    """Run without recording responses first, whose requests the server's log would have, too."""
    ended = _run(environment, server, *options, "--golden", "off")
    # An older load tester has no such value, refuses it before any request, and records no responses.
    return _run(environment, server, *options) if ended.exit_code == USAGE else ended


def _useless(protocol: str, wrong: Wrong) -> Finding:
    def judge(environment: Environment) -> Seen:
        with serving(replace(_QUICK, wrong={wrong: 1}, right=60)) as server:
            ended = _run(environment, server, "--users", "2", "--duration", "3s", *_COLD, protocol=protocol)
            log = server.end()
        useless, failures = log.statuses[wrong], ended.document.get("total", {}).get("failures", 0)
        right = ended.exit_code == FAILED and failures == useless
        return Seen(f"{useless:,} of {len(log):,} {wrong}", f"{failures:,} failed", ended.exit_code, right)

    return Finding(f"run, {protocol}: {wrong} instead of answers", "failed requests, exit 1", judge)


def _useless_compared(protocol: str, wrong: Wrong) -> Finding:
    def judge(environment: Environment) -> Seen:
        quick = Script(service_s=0.002, wrong={wrong: 1}, right=20)
        return _compared(environment, replace(_QUICK), quick, {GATE, FAILED}, {"worse", "failing"}, protocol)

    return Finding(f"compare, {protocol}: B sends {wrong} quickly", "B worse or failing, exit 1 or 99", judge)


def _compared(
    environment: Environment, a: Script, b: Script, codes: set[int], verdicts: set[str], protocol: str = "grpc"
) -> Seen:
    with serving(a) as one, serving(b) as two:
        addresses = (one.grpc, two.grpc) if protocol == "grpc" else (one.rest, two.rest)
        options = ("--rate", "150", "--rounds", "6", "--duration", "1500ms", *_COLD, *_NOTE, "--json")
        ended = environment.run("compare", MODEL, *addresses, *options)
        logs = one.end(), two.end()
    means = [np.mean(log.latencies_ms()) if log.ok.entries else 0.0 for log in logs]
    wrong = logs[1].failed / max(len(logs[1]), 1)
    record = f"mean {means[0]:.1f} and {means[1]:.1f} ms" + (f", B {wrong:.0%} useless" if wrong else "")
    right = ended.exit_code in codes and ended.verdict in verdicts
    return Seen(record, ended.verdict, ended.exit_code, right)


# 38 % of the requests take 20 ms and 2 % take 45 ms. B's class of 38 % takes 35 ms: its mean is 39 % higher, its median
# and p99 are the same.
_CLASSES: Final = Script(service_s=0.010, spread_s=0.001, slow={50: 0.045, 3: 0.020, 5: 0.020})
_MEAN: Final = replace(_CLASSES, slow={50: 0.045, 3: 0.035, 5: 0.035})


def _mean(environment: Environment) -> Seen:
    return _compared(environment, _CLASSES, _MEAN, {GATE}, {"worse"})


def _equal(environment: Environment) -> Seen:
    return _compared(environment, _CLASSES, _CLASSES, {PASSED, EVIDENCE}, {"same", "unclear"})


def _scenario(
    rare: Script, weight: int, gates: Sequence[str], code: int, seconds: int = 8
) -> Callable[[Environment], Seen]:
    def judge(environment: Environment) -> Seen:
        script = replace(_QUICK, models={"rare": rare})
        with serving(script) as server, tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "scenario.yaml")
            file.write_text(f"models:\n- model: common\n  weight: {weight - 1}\n- model: rare\n  weight: 1\n")
            load = ("--rate", "150", "--duration", f"{seconds}s", *_COLD, *_NOTE, "--json")
            address = ("--grpc", server.grpc)
            ended = environment.run("run", "--scenario", str(file), *address, *load, "--fail-if", *gates)
            log = server.end().of("grpc", "rare")
        record = f"rare: {log.failed} of {len(log)} failed, " + (
            f"mean {np.mean(log.latencies_ms()):,.0f} ms" if log.ok.entries else "no answer"
        )
        return Seen(record, ended.verdict, ended.exit_code, ended.exit_code == code)

    return judge


def _retries(environment: Environment) -> Seen:
    with serving(replace(_QUICK, faults={Fault.REFUSED: 2})) as server:
        ended = _unrecorded(environment, server, "--users", "2", "--requests", "200", *_COLD)
        refused = server.end().statuses[Fault.REFUSED]
    total = ended.document.get("total", {})
    retries = total.get("retries", 0) + total.get("failures", 0)
    words = f"{total.get('failures')} failed, {total.get('retries', 'no')} retries"
    return Seen(f"refused {refused} streams", words, ended.exit_code, refused > 0 and retries >= refused)


def _flood(environment: Environment) -> Seen:
    """Refuse two of three streams: a client that retries once fails most requests."""
    with serving(replace(_QUICK, faults={Fault.REFUSED: 1}, right=20)) as server:
        ended = _unrecorded(environment, server, "--users", "1", "--requests", "60", *_COLD)
        log = server.end()
    sent = len(log) / max(ended.document.get("total", {}).get("requests", 1), 1)
    failures = ended.document.get("total", {}).get("failures", 0)
    words = f"{failures} failed"
    return Seen(f"{sent:.1f} streams for a request", words, ended.exit_code, failures >= 40 and sent <= 2.1)


def _timeouts(environment: Environment) -> Seen:
    with serving(replace(_QUICK, faults={Fault.SILENT: 50})) as server:
        options = ("--rate", "100", "--duration", "10s", "--timeout", "1s", *_COLD, *_GATES)
        ended = _run(environment, server, *options)
        log = server.end()
    silent = sum(entry.status in (Fault.SILENT, "abandoned") for entry in log.entries)
    return Seen(f"{silent} of {len(log)} never answered", ended.verdict, ended.exit_code, ended.exit_code == GATE)


def _few(environment: Environment) -> Seen:
    with serving(_QUICK) as server:
        ended = _run(environment, server, "--users", "2", "--requests", "20", *_COLD, *_GATES)
        count = len(server.end())
    return Seen(f"{count} requests", ended.verdict, ended.exit_code, ended.exit_code == EVIDENCE)


def _slow_start(environment: Environment) -> Seen:
    with serving(replace(_QUICK, course=((0.0, 5.0), (3.0, 1.0)))) as server:
        # A recording of responses would take place during the slow seconds.
        ended = _unrecorded(environment, server, "--rate", "100", "--duration", "9s", *_COLD)
        log = server.end()
    first, rest = log[: len(log) // 3].latencies_ms(), log[len(log) // 3 :].latencies_ms()
    omitted_s = ended.document.get("slow_start_s", 0.0)
    record = f"mean {np.mean(first):.0f}, then {np.mean(rest):.0f} ms"
    return Seen(record, f"omits {omitted_s:.3g} s", ended.exit_code, 2.5 < omitted_s < 4)


def _cache(environment: Environment) -> Seen:
    with serving(Script(service_s=0.030, spread_s=0.004, cached_s=0.001)) as server:
        options = ("--users", "2", "--duration", "3s", *_COLD, "--server-metrics", "auto")
        ended = _run(environment, server, *options, protocol="rest")
        log = server.end()
    distinct = len({entry.digest for entry in log.entries})
    p50, named = ended.document.get("total", {}).get("p50_ms"), ended.said("cache")
    right = named or distinct >= 0.9 * len(log)
    words = f"p50 {p50} ms, cache {'named' if named else 'not named'}"
    return Seen(f"{distinct} distinct of {len(log)} requests", words, ended.exit_code, right)


def _connections(environment: Environment) -> Seen:
    with serving(_QUICK) as server:
        load = ("--users", "32", "--duration", "2s", *_COLD)
        ended = _unrecorded(environment, server, *load, "--connections", "8")
        if not ended.document:
            ended = _run(environment, server, *load)
        found = len({entry.connection for entry in server.end().entries})
    return Seen(f"{found} connections for 32 users", ended.verdict, ended.exit_code, found == 8)


def _pairs(environment: Environment) -> Seen:
    with serving(_QUICK) as server:
        options = ("--rate", "50", "--arrivals", "constant", "--duration", "5s", "--processes", "2", *_COLD)
        ended = _run(environment, server, *options)
        log = server.end()
    arrivals = np.array([entry.arrived_s for entry in log.entries])
    paired = float(np.mean(np.diff(arrivals) < 0.005))
    return Seen(f"{paired:.0%} of gaps under a quarter", ended.verdict, ended.exit_code, paired < 0.1)


_FIELDS: Final = ("schema", "time", "versions", "address", "command", "series")


def _fields(environment: Environment) -> Seen:
    with serving(_QUICK) as server:
        ended = _run(environment, server, "--users", "2", "--duration", "1s", *_COLD)
    names = " ".join([*ended.document, *ended.document.get("settings", ())]).lower()
    synonyms = {
        "schema": ("schema", "format"),
        "time": ("started", "time ", "date"),
        "versions": ("version", "tool"),
        "address": ("address", "target"),
        "command": ("command", "argv"),
        "series": ("series", "windows", "timeline"),
    }
    missing = [name for name in _FIELDS if not any(word in f"{names} " for word in synonyms[name])]
    return Seen("-", f"lacks {', '.join(missing)}" if missing else "all fields", ended.exit_code, not missing)


def _interrupted(number: signal.Signals) -> Finding:
    def judge(environment: Environment) -> Seen:
        with serving(_QUICK) as server, tempfile.TemporaryDirectory() as folder:
            junit = Path(folder, "junit.xml")
            options = ("--users", "4", "--duration", "60s", *_COLD, *_NOTE, *_GATES)
            command = environment.command("run", MODEL, "--grpc", server.grpc, *options, "--server-metrics", "off")
            with subprocess.Popen(
                [*command, "--json", "--junit", str(junit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process:
                try:
                    wait_for_predictions(server, 800)
                    process.send_signal(number)
                    output, errors = process.communicate(timeout=30)
                finally:
                    process.kill()
            ended = Ended(process.returncode, output, errors)
            problems = _problems(junit)
            count = len(server.end())
        words = f"{'a report' if ended.document else 'no report'}, JUnit {problems}"
        right = ended.exit_code == INTERRUPTED and bool(ended.document) and problems == "red"
        return Seen(f"{count:,} requests of a minute's", words, ended.exit_code, right)

    return Finding(f"run, {number.name} within a minute's run", "exit 130, a report, JUnit red", judge)


def _problems(junit: Path) -> str:
    if not junit.exists():
        return "missing"
    cases = ElementTree.parse(junit).iter("testcase")
    return (
        "red" if any(case.find("failure") is not None or case.find("error") is not None for case in cases) else "green"
    )


def wait_for_predictions(server: ScriptedServer, count: int, limit_s: float = 60.0) -> None:
    """Block until a server has received this many predictions. Raises TimeoutError."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{server.rest}/metrics", timeout=10) as page:
            found = [line for line in page.read().decode().splitlines() if line.startswith("scripted_predictions ")]
        if float(found[0].split()[1]) >= count:
            return
        time.sleep(0.1)
    raise TimeoutError(f"The server received fewer than {count} predictions in {limit_s:g} s.")


def _stall(environment: Environment) -> Seen:
    """Stop a server for a second of six, under a closed load."""
    with serving(replace(_QUICK, freeze_at_s=2.0, freeze_s=1.0)) as server:
        options = ("--users", "2", "--duration", "6s", *_COLD, *_NOTE, *_GATES)
        ended = environment.run("run", MODEL, "--grpc", server.grpc, *options)
        count = len(server.end())
    verdict = ended.output.strip().split("\n", 1)[0] or ended.verdict
    named = "closed" in verdict.lower() or "in flight" in verdict.lower()
    return Seen(f"stopped for 1 of 6 s, {count} requests", verdict[:90], ended.exit_code, named)


def _default_load(command: str) -> Finding:
    def judge(environment: Environment) -> Seen:
        with serving(_QUICK) as one, serving(_QUICK) as two:
            short = ("--duration", "1s", "--rounds", "3") if command == "compare" else ("--duration", "10s")
            addresses = (one.grpc, two.grpc) if command == "compare" else ("--grpc", one.grpc)
            ended = environment.run(command, MODEL, *addresses, *short, *_COLD, *_NOTE)
            log = one.end()
        most = _most_in_flight(log)
        text = f"{ended.output} {ended.errors}"
        is_open = "requests/s" in text
        return Seen(f"at most {most} in flight", "open" if is_open else "closed", ended.exit_code, is_open)

    return Finding(f"{command}, without a load's options", "an open load", judge)


def _most_in_flight(log: Log) -> int:
    ends = [(entry.arrived_s, 1) for entry in log.entries] + [(entry.finished_s, -1) for entry in log.entries]
    return max(np.cumsum([step for _, step in sorted(ends)]), default=0)


def _soak_step(environment: Environment) -> Seen:
    with serving(replace(_QUICK, course=((0.0, 1.0), (7.5, 2.0)))) as server:
        options = ("--rate", "100", "--duration", "15s", *_COLD, *_NOTE, "--json")
        ended = environment.run("soak", MODEL, "--grpc", server.grpc, *options)
        log = server.end()
    half = len(log) // 2
    record = f"mean {np.mean(log[:half].latencies_ms()):.1f}, then {np.mean(log[half:].latencies_ms()):.1f} ms"
    return Seen(record, ended.verdict, ended.exit_code, ended.exit_code == GATE)


def _generated(row: str, should: str, trials: int, bad: set[str], *, wanted: tuple[int, int]) -> Finding:
    """Return a row of generated series, of whose trials `wanted` bounds the number with a verdict of `bad`."""

    def judge(environment: Environment) -> Seen:
        found = environment.generated(row, trials)
        words = ", ".join(f"{verdict} {count}" for verdict, count in sorted(found.items(), key=lambda each: -each[1]))
        alarms = sum(count for verdict, count in found.items() if verdict in bad)
        return Seen(f"{trials} trials", words, None, wanted[0] <= alarms <= wanted[1])

    return Finding(row, should, judge, is_chance=True)


_WORSE: Final = {"worse"}
_DIFFERENT: Final = {"worse", "better"}
_DRIFTING: Final = {"drifting", "stepped", "changed"}


def _chances() -> Iterator[Finding]:
    for change in ("mean +29 %", "middle class +88 %", "0.5 % at +5 s"):
        yield _generated(f"compare, generated: {change}", "worse in 18 of 20", 20, _WORSE, wanted=(18, 20))
    # The confidence of all figures together is 98 %.
    for name, trials in (("ten rounds", 50), ("three rounds", 300)):
        most = round(0.02 * trials)
        yield _generated(
            f"compare, generated: equal, {name}", f"different in {most} at most", trials, _DIFFERENT, wanted=(0, most)
        )
    yield _generated("compare, generated: a slow round of B's machine", "rate not judged", 20, {"rate"}, wanted=(0, 0))
    for change in ("step x2 at half time", "x5 in the last sixth", "p99 x10 in every fourth", "x3 for three segments"):
        yield _generated(f"soak, generated: {change}", "drifting in 45 of 50", 50, _DRIFTING, wanted=(45, 50))
    yield _generated("soak, generated: steady", "drifting at most once", 50, _DRIFTING, wanted=(0, 1))


def findings() -> list[Finding]:
    """Return all rows, in the order of the issue."""
    slow, failing = Script(service_s=2.0), replace(_QUICK, faults={Fault.INTERNAL: 1})
    both = ("p90>500ms", "error_rate>5%")
    return [
        *(_useless("rest", wrong) for wrong in (Wrong.HTML, Wrong.ERROR, Wrong.EMPTY, Wrong.HALF, Wrong.MISSING)),
        *(_useless("grpc", wrong) for wrong in (Wrong.EMPTY, Wrong.MISSING, Wrong.SHAPE)),
        _useless_compared("rest", Wrong.ERROR),
        _useless_compared("grpc", Wrong.EMPTY),
        Finding("run: 1 of 200 requests goes to a model that fails wholly, named gate", "exit 99",
                _scenario(failing, 200, ("p99>500ms", "rare.error_rate>1%"), GATE)),
        Finding("run: 1 of 50 requests goes to a model that fails wholly", "exit 99",
                _scenario(failing, 50, both, GATE)),
        Finding("run: 1 of 50 requests goes to a model that takes 2 s", "exit 99",
                _scenario(slow, 50, both, GATE)),
        Finding("compare: mean +39 %, p50 and p99 the same", "B worse, exit 99", _mean),
        Finding("compare: equal", "same or inconclusive", _equal),
        Finding("soak: step x2 at half time", "exit 99", _soak_step),
        _interrupted(signal.SIGINT),
        _interrupted(signal.SIGTERM),
        Finding("run: every second stream refused", "retries or failures reported", _retries),
        Finding("run: every stream refused", "failed after one retry", _flood),
        Finding("run: a closed load hides a stall", "the verdict names the load", _stall),
        _default_load("compare"),
        _default_load("soak"),
        Finding("run: 2 % of requests time out, gate p99>500ms", "exit 99", _timeouts),
        Finding("run: p99 gate on 20 requests", "exit 97", _few),
        Finding("run: the first third is five times slower", "a note", _slow_start),
        Finding("run: response cache", "distinct requests, or a note", _cache),
        Finding("run: --connections 8 for 32 users", "8 connections", _connections),
        Finding("run --processes 2: constant rate", "even gaps", _pairs),
        Finding("run --json: fields", "all fields", _fields),
        *_chances(),
    ]  # fmt: skip
