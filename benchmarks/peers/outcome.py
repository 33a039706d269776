"""Results of a run of peers.py, written to a JSON file and read from one for a new report."""

import datetime
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.harness.load_tools import Load
from benchmarks.harness.process_tree import Memory
from benchmarks.peers.clients import Poisoned, Stall
from benchmarks.peers.measurement import Measured, Point


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one server. `problem` is the reason why it was not measured, or empty. `failed`: its measurement
    failed.
    """

    name: str
    title: str
    version: str
    batching: str
    measured: Measured | None
    problem: str = ""
    failed: bool = False

    def point(self, wire: str) -> Point | None:
        """Return the loads over that wire, or None if there are none."""
        points = self.measured.points if self.measured else ()
        return next((point for point in points if point.wire == wire), None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `load_before` is the machine's 1-minute load average before it began."""

    date: str
    machine: str
    load_before: float
    seconds: int
    results: tuple[Result, ...]

    def result(self, name: str) -> Result | None:
        """Return the result of a server, or None if the run did not include it."""
        return next((result for result in self.results if result.name == name), None)

    def write(self, file: Path) -> None:
        """Write everything as JSON; times in ms, CPU in seconds per 1000 requests, memory in MB of 10^6 bytes."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file from `write`. Raises OSError, or ValueError for any other file."""
        try:
            document = json.loads(file.read_text())
            results = tuple(_result(result) for result in document.pop("results"))
            return cls(**document, results=results)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is not a result of this benchmark: {error!r}") from error


def today() -> str:
    """Return the date in UTC, as YYYY-MM-DD."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def machine(cpuinfo: str) -> str:
    """Return the properties that decide the speed of a small model: cores, and extensions in /proc/cpuinfo."""
    flags = set(cpuinfo.split())
    names = [name for flag, name in (("avx512f", "AVX512"), ("amx_tile", "AMX")) if flag in flags]
    extensions = f" ({', '.join(names)})" if names else ""
    return f"{os.cpu_count()} cores{extensions}"


def _result(document: dict[str, Any]) -> Result:
    found = document.pop("measured")
    return Result(**document, measured=None if found is None else _measured(found))


def _measured(document: dict[str, Any]) -> Measured:
    return Measured(
        points=tuple(_point(point) for point in document["points"]),
        memory=Memory(**document["memory"]),
        poisoned=Poisoned(**document["poisoned"]),
        stall=Stall(**document["stall"]),
    )


def _point(document: dict[str, Any]) -> Point:
    load, lone = Load(**document.pop("load")), Load(**document.pop("lone"))
    return Point(**document, load=load, lone=lone)
