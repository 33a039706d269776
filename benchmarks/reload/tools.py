"""Tools of the reload benchmark: publishing and awaiting versions, and a load that records each request's time."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.harness.load_tools import ToolFailed, percentile
from benchmarks.harness.measurement import Bodies
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, Target, http_get

CONNECTIONS = 4
LOAD_TIMEOUT_S = 120.0
# Interval between polls of a version's state: short relative to a load, long relative to a request.
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """A request of a load generator: start (seconds since the epoch), latency, and whether its status is 200."""

    started_s: float
    latency_us: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency statistics of the requests in some intervals."""

    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Load:
    """h2load at a steady rate, independent of response times, with a log of each request. Runs in the background."""

    def __init__(self, target: Target, rate_per_s: int, duration_s: int, bodies: Bodies, scratch: Path) -> None:
        """Start h2load. It ends after `duration_s`."""
        self._log = scratch / "reload.log"
        self._log.unlink(missing_ok=True)
        self._duration_s = duration_s
        self._process = subprocess.Popen(
            self._command(target, rate_per_s, duration_s, bodies), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _command(self, target: Target, rate_per_s: int, duration_s: int, bodies: Bodies) -> list[str]:
        command = ["h2load", "-t1", f"-c{CONNECTIONS}", f"-D{duration_s}", f"--rps={rate_per_s // CONNECTIONS}"]
        command.append(f"--log-file={self._log}")
        if target.protocol == "grpc":
            command += ["-m32", f"-d{bodies.grpc}", "-H", "content-type: application/grpc", "-H", "te: trailers"]
            return [*command, f"http://127.0.0.1:{target.port}{GRPC_PATH}"]
        command += ["--h1", f"-d{bodies.rest}", "-H", "content-type: application/json"]
        return [*command, f"http://127.0.0.1:{target.port}{REST_PATH}"]

    def finish(self) -> list[Sample]:
        """Wait for the end, and return all requests. Raises ToolFailed."""
        try:
            status = self._process.wait(self._duration_s + 30)
        except subprocess.TimeoutExpired:
            self.stop()
            raise ToolFailed("h2load did not exit in time.") from None
        if status:
            raise ToolFailed(f"h2load exited with status {status}.")
        return parse_log(self._log.read_text())

    def stop(self) -> None:
        """Kill h2load."""
        self._process.kill()
        self._process.wait()


class LightLoad:
    """Sends a request every `pause_s` seconds on its own thread, for the duration of the `with` block."""

    def __init__(self, send: Callable[[], object], pause_s: float) -> None:
        """Create the load. `send` sends one request, and raises an exception if it fails."""
        self.sent = 0
        self.failures: list[str] = []
        self._send = send
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="light-load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            self.sent += 1
            try:
                self._send()
            except Exception as error:
                # Count every exception as a failed request, and send the next one.
                self.failures.append(f"{type(error).__name__}: {error}")


def parse_log(log: str) -> list[Sample]:
    """Parse h2load's log: start in microseconds since the epoch, HTTP status, microseconds until the end of the
    response.
    """
    rows = (line.split("\t") for line in log.splitlines())
    return [Sample(int(start) / 1e6, int(took), status == "200") for start, status, took in rows]


def latency(samples: Sequence[Sample], spans: Sequence[tuple[float, float]], *, inside: bool) -> Latency:
    """Return statistics of the requests that overlap the spans, or of all others."""
    chosen = sorted(
        sample.latency_us
        for sample in samples
        if inside == any(sample.started_s + sample.latency_us / 1e6 >= a and sample.started_s <= b for a, b in spans)
    )
    largest_ms = chosen[-1] / 1000 if chosen else float("nan")
    return Latency(len(chosen), percentile(chosen, 50) / 1000, percentile(chosen, 99) / 1000, largest_ms)


def publish(template: Path, base: Path, version: int) -> None:
    """Publish version `version` below `base` atomically: a directory of hard links to the template's files."""
    staged = base.parent / f"staged-{version}"
    shutil.copytree(template, staged, copy_function=os.link)
    staged.rename(base / str(version))


def retire(base: Path, version: int) -> None:
    """Delete a version's directory."""
    shutil.rmtree(base / str(version))


def wait_for(rest: Target, states: Mapping[int, str]) -> None:
    """Wait until each of these versions is in its state. Raises ToolFailed after a timeout."""
    expected = {str(version): state for version, state in states.items()}
    deadline_s = time.monotonic() + LOAD_TIMEOUT_S
    while time.monotonic() < deadline_s:
        page = json.loads(http_get(rest.port, f"/v1/models/{MODEL_NAME}"))
        found = {each["version"]: each["state"] for each in page["model_version_status"]}
        if all(found.get(version) == state for version, state in expected.items()):
            return
        time.sleep(_LOOK_S)
    raise ToolFailed(f"After {LOAD_TIMEOUT_S:.0f} s the versions are {found}, expected {expected}.")
