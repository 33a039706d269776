"""Result files: the JSON document of a report in one envelope for all commands, with the histograms of its runs.

`docs/reference/result-file.schema.json` describes the envelope. `loadtest diff` and `--baseline` read the runs back.
See docs/explanation/decisions/0117-results-are-files-with-one-schema.md.
"""

import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import orjson

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder
from tpuserve_loadtests.rendering.report import Report

SCHEMA: Final = "tpuserve.loadtest.result/1"
_PACKAGES: Final = ("tpuserve-loadtests", "locust")
_CPU: Final = Path("/proc/cpuinfo")
# Settings that must be equal, so that a difference between two results is one of the servers.
_SAME: Final = ("Signature", "Requests", "Load", "Generator", "Objective")
_VERSION: Final = re.compile(r" (?:version \d+|label \S+)$")
# The content of the results of a kind. Results with the same content are comparable.
_CONTENTS: Final = {
    "loadtest": "one load",
    "loadtest soak": "one load",
    "loadtest sweep": "several loads",
    "loadtest search": "the highest rate",
}
# Consecutive parts of a single run, which vary like the runs of a comparison.
PARTS: Final = 8


class BadResult(ValueError):
    """Error for a file that is not a result, or has no runs that `loadtest diff` compares."""


def result_json(report: Report, started_at: datetime, ended_at: datetime, *, with_runs: bool) -> str:
    """Render the report as JSON. With `with_runs`, the document has the histograms of all windows of all runs."""
    page = report.page()
    envelope = {
        "schema": SCHEMA,
        "kind": report.kind,
        "subject": report.subject,
        "started_at": _iso(started_at),
        "ended_at": _iso(ended_at),
        "duration_s": (ended_at - started_at).total_seconds(),
        "exit_code": report.exit_code,
        "headline": {"kind": page.headline.kind, "words": page.headline.words, "reasons": [*page.headline.reasons]},
        "settings": {name: value for name, value in page.settings.items() if value},
        "machine": {"cores": os.cpu_count() or 1, "cpu": _cpu(), "system": platform.platform()},
        "versions": {**{name: metadata.version(name) for name in _PACKAGES}, "python": platform.python_version()},
    }
    # The envelope is first, and no value of a command replaces its values.
    document = {**envelope, **report.document(), **envelope}
    document["cases"] = list(report.cases)
    document["series"] = [dict(row) for row in report.rows()]
    if with_runs:
        document["runs"] = {name: _run_document(measured) for name, measured in report.runs.items()}
    # Infinite and unknown numbers become null.
    return orjson.dumps(document, _plain, orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def _cpu() -> str:
    try:
        names = [line for line in _CPU.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _plain(value: Any) -> Any:  # noqa: ANN401  any JSON value
    match value:
        case Mapping():
            return dict(value)
        case bytes():
            return value.decode("ascii")
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _run_document(measured: Measured) -> dict[str, Any]:  # plain values of several types
    recorder = measured.recorder.to_wire()
    del recorder["counts"]  # counts for a load in progress
    return {
        "load": replace(measured.load, limits_us=()).to_wire(),
        "lines": measured.recorder.lines,
        "started_at": measured.started_at,
        "span_s": measured.span_s,
        "cores": measured.cores,
        "stopped": measured.stopped,
        "lost": measured.lost,
        "recorder": recorder,
    }


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result that --json-file wrote."""

    path: Path
    document: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the result of `run`, `soak`, `sweep` or `search`. Raises BadResult."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadResult(f"{path}: {getattr(error, 'strerror', None) or 'not a JSON file'}") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise BadResult(f"{path} has the schema {schema}, but {SCHEMA} is required. Write the file again.")
        if document["kind"] not in _CONTENTS or not document.get("runs"):
            wanted = "`run`, `soak`, `sweep` or `search`"
            raise BadResult(f"{path} has no runs to compare. Write it with --json-file of {wanted}.")
        if document["kind"] == "loadtest search" and document["problem"] and document["rate_per_s"] is None:
            raise BadResult(f"{path} has a search that did not end: {document['problem']}. Search again.")
        return cls(path, document)

    @property
    def passed(self) -> bool:
        return bool(self.document["exit_code"] == 0)

    @property
    def content(self) -> str:
        return _CONTENTS[self.document["kind"]]

    @property
    def loads(self) -> Sequence[str]:
        """The names of the runs, which are the loads of a sweep."""
        return tuple(self.document["runs"])

    @property
    def rates(self) -> tuple[float, float]:
        """The highest rate that holds, 0 if none does, and the next one, which does not, or infinity."""
        best, ceiling = self.document["rate_per_s"], self.document["does_not_hold_per_s"]
        return best or 0.0, math.inf if ceiling is None else ceiling

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions by name that a comparable result shares: model, requests, load and machine."""
        document, settings, machine = self.document, self.document["settings"], self.document["machine"]
        lines = next(iter(document["runs"].values()))["lines"]
        return {
            "Model": _VERSION.sub("", document["subject"]),
            "Content": self.content,
            "Lines": ", ".join(lines),
            **{name: settings.get(name, "") for name in _SAME},
            "Machine": f"{machine['cores']} cores, {machine['cpu']}",
        }

    def rounds(self, load: str = "") -> list[Measured]:
        """Return the runs, or the parts of a single run: the one of a `load`, or the only one. Raises BadResult."""
        found = self.document["runs"]
        runs = [found[load]] if load else list(found.values())
        try:
            return _parts(runs[0]) if len(runs) == 1 else [_run_of(run, run["recorder"], run["span_s"]) for run in runs]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadResult(f"{self.path} has a damaged run ({error}). Write the file again.") from None


def _parts(run: Mapping[str, Any]) -> list[Measured]:
    recorder, span_s = run["recorder"], run["span_s"]
    windows, window_s = recorder["windows"], recorder["window_s"]
    # A stopped run has empty windows at its end.
    complete = min(len(windows), max(int(span_s / window_s + 1e-6), 1))
    ends = sorted({round(number * complete / PARTS) for number in range(PARTS + 1)})
    found = []
    for first, last in pairwise(ends):
        part = {**recorder, "windows": windows[first:last]}
        found.append(_run_of(run, part if first == 0 else {**part, **_COUNTED_ONCE}, (last - first) * window_s))
    return found


# What a recorder counts for the whole run, for the parts after the first.
_COUNTED_ONCE: Final = {"errors": [], "dropped": 0, "unanswered": 0, "replicas": {}, "warm_up_requests": 0}


def _run_of(run: Mapping[str, Any], recorded: Mapping[str, Any], span_s: float) -> Measured:
    seconds = run["load"]["seconds"]
    load = Load.from_wire({**run["load"], "seconds": math.inf if seconds is None else seconds})
    recorder = Recorder(run["lines"], load)
    recorder.windows.clear()
    recorder.window_s = recorded["window_s"]
    recorder.add_wire({**recorded, "counts": Counts().to_wire()})
    cores: Sequence[float] = run["cores"]
    return Measured(load, recorder, span_s, tuple(cores), run["stopped"], run["started_at"], tuple(run["lost"]))
