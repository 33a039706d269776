"""Runners and output parsers of the load generators: h2load for gRPC and wrk for REST."""

import json
import math
import re
import resource
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# tool -> Debian package
PACKAGES = {"h2load": "nghttp2-client", "wrk": "wrk"}
GRPC_CONNECTIONS = 8
JSON_HEADERS: Mapping[str, str] = MappingProxyType({"content-type": "application/json"})
GRPC_HEADERS: Mapping[str, str] = MappingProxyType({"content-type": "application/grpc", "te": "trailers"})
FRAME_HEADER_BYTES = 5
# Limit for a tool that does not stop by itself, in seconds. On a loaded machine a start alone takes half a minute.
GRACE_S = 300.0

_WRK_SCRIPT = """
local file = assert(io.open("{body}", "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
{headers}
file:close()
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {{"requests": %d, "failures": %d, "elapsed_us": %d, "p50_us": %d, "p99_us": %d}}\\n',
    summary.requests, errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    summary.duration, latency:percentile(50), latency:percentile(99)))
end
"""


class ToolFailed(RuntimeError):
    """A load generator could not run or reported no requests."""


@dataclass(frozen=True, slots=True)
class Load:
    """Results of a load generator. Failures are transport and HTTP failures: h2load cannot see a grpc-status.

    `data_bytes` counts the response bodies, which reveals errors with HTTP status 200. None from wrk.
    """

    requests: int
    failures: int
    elapsed_s: float
    p50_ms: float
    p99_ms: float
    generator_cores: float
    data_bytes: int | None = None

    @property
    def rate_per_s(self) -> float:
        """Successful requests per second."""
        return (self.requests - self.failures) / self.elapsed_s


def missing_tools() -> list[str]:
    """Return the Debian packages to install before measuring."""
    return [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]


def framed(message: bytes) -> bytes:
    """Frame an uncompressed message for gRPC. h2load sends the result."""
    return struct.pack(">BI", 0, len(message)) + message


def run_h2load(
    port: int,
    path: str,
    body: Path,
    *,
    in_flight: int,
    duration_s: int,
    scratch: Path,
    tls: bool = False,
    headers: Mapping[str, str] = GRPC_HEADERS,
    connections: int = GRPC_CONNECTIONS,
    threads: int = 1,
) -> Load:
    """Send a framed gRPC request for `duration_s` seconds, with `in_flight` requests over at most `connections`.

    With `tls`, h2load accepts any certificate, like wrk.
    """
    connections = min(in_flight, connections)
    log = scratch / "h2load.log"
    log.unlink(missing_ok=True)
    command = ["h2load", f"-t{threads}", f"-c{connections}", f"-m{in_flight // connections}", f"-D{duration_s}"]
    command += [f"--log-file={log}", f"-d{body}", *(f"-H{name}: {value}" for name, value in headers.items())]
    output, cores = _run([*command, _url(port, path, tls)], duration_s)
    return parse_h2load(output, log.read_text() if log.exists() else "", cores)


def parse_h2load(output: str, log: str, generator_cores: float) -> Load:
    """Parse h2load's summary, and compute percentiles from its log of requests (start, status, microseconds).

    Raises:
        ToolFailed: no request finished, or the responses are too small for a message each: they were errors.
    """
    finished = re.search(r"finished in ([\d.]+)(s|ms|us)", output)
    counts = re.search(r"(\d+) done, (\d+) succeeded", output)
    if finished is None or counts is None or counts[1] == "0":
        raise ToolFailed(f"h2load finished no request:\n{output[-800:]}")
    data = re.search(r"\((\d+)\) data$", output, re.MULTILINE)
    data_bytes = None if data is None else int(data[1])
    if data_bytes is not None and data_bytes < int(counts[2]) * FRAME_HEADER_BYTES:
        raise ToolFailed(f"{counts[2]} responses have {data_bytes} bytes. The server answered with errors.")
    rows = (line.split("\t") for line in log.splitlines())
    latencies_us = sorted(int(row[2]) for row in rows if row[1] == "200")
    return Load(
        requests=int(counts[1]),
        failures=int(counts[1]) - int(counts[2]),
        elapsed_s=float(finished[1]) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[finished[2]],
        p50_ms=percentile(latencies_us, 50) / 1000,
        p99_ms=percentile(latencies_us, 99) / 1000,
        generator_cores=generator_cores,
        data_bytes=data_bytes,
    )


def run_wrk(
    port: int,
    path: str,
    body: Path,
    *,
    in_flight: int,
    duration_s: int,
    scratch: Path,
    tls: bool = False,
    headers: Mapping[str, str] = JSON_HEADERS,
    threads: int = 1,
) -> Load:
    """Send a body for `duration_s` seconds over `in_flight` connections with one request in flight on each."""
    script = scratch / "wrk.lua"
    lines = (f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
    script.write_text(_WRK_SCRIPT.format(body=body, headers="\n".join(lines)))
    command = ["wrk", f"-t{threads}", f"-c{in_flight}", f"-d{duration_s}s", "-s", str(script)]
    return parse_wrk(*_run([*command, _url(port, path, tls)], duration_s))


def parse_wrk(output: str, generator_cores: float) -> Load:
    """Parse the line that our wrk script prints."""
    line = re.search(r"^RESULT (.*)$", output, re.MULTILINE)
    figures = json.loads(line[1]) if line else {"requests": 0}
    if not figures["requests"]:
        raise ToolFailed(f"wrk finished no request:\n{output[-800:]}")
    return Load(
        requests=figures["requests"],
        failures=figures["failures"],
        elapsed_s=figures["elapsed_us"] / 1e6,
        p50_ms=figures["p50_us"] / 1000,
        p99_ms=figures["p99_us"] / 1000,
        generator_cores=generator_cores,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` percent of the sorted values do not exceed, or NaN if empty."""
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def _url(port: int, path: str, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://127.0.0.1:{port}{path}"


def _run(command: list[str], duration_s: int) -> tuple[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=duration_s + GRACE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolFailed(f"{command[0]}: {error}") from error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.stdout + done.stderr, cpu_s / duration_s
