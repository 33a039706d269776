"""Cost of load reports (ORCA): an endpoint answers requests of inference without one, when asked, and always."""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from tests.support.bare_endpoint import bare_endpoint
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.hosts.application import HostOptions, LoadReporting
from tpuserve_server.hosts.endpoint import Endpoint

if TYPE_CHECKING:
    from starlette.types import Message

# The headers that clients such as curl and httpx send.
_HEADERS: Final = [
    (b"host", b"localhost:8501"), (b"user-agent", b"client/1.0"), (b"accept", b"*/*"), (b"connection", b"keep-alive"),
    (b"accept-encoding", b"gzip, deflate"), (b"content-type", b"application/json"), (b"content-length", b"30"),
]  # fmt: skip
_ASK: Final = (b"endpoint-load-metrics-format", b"text")
_ROUNDS: Final = 9


async def _sent(_message: "Message") -> None:
    return None


async def _received() -> "Message":
    return {"type": "http.request", "body": b""}


def _endpoint(mode: LoadReporting) -> Endpoint:
    return bare_endpoint(SystemClock(), Traffic(), HostOptions(load_reports=mode))


async def _request_us(endpoint: Endpoint, headers: Sequence[tuple[bytes, bytes]], count: int) -> float:
    scope = {
        "type": "http", "method": "POST", "path": "/v1/models/m:predict", "query_string": b"", "http_version": "1.1",
        "headers": list(headers), "extensions": {}, "client": ("127.0.0.1", 1),
    }  # fmt: skip
    started_s = time.perf_counter()
    for _ in range(count):
        await endpoint(scope, _received, _sent)
    return (time.perf_counter() - started_s) / count * 1e6


async def _measure(count: int) -> dict[str, float]:
    ways: dict[str, tuple[Endpoint, Sequence[tuple[bytes, bytes]]]] = {
        "never": (_endpoint("never"), _HEADERS),
        "asked, without the header": (_endpoint("asked"), _HEADERS),
        "asked, with the header": (_endpoint("asked"), [*_HEADERS, _ASK]),
        "always": (_endpoint("always"), _HEADERS),
    }
    rounds = [
        {name: await _request_us(endpoint, headers, count) for name, (endpoint, headers) in ways.items()}
        for _ in range(_ROUNDS)
    ]
    return {name: statistics.median(each[name] for each in rounds) for name in ways}


@click.command()
@click.option("--requests", default=20_000, show_default=True, help="Requests of each way and round.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(requests: int, as_json: bool) -> None:
    """Measure the microseconds that load reports add to a request at the endpoint, in turns."""
    found = asyncio.run(_measure(requests))
    base_us = found["never"]
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, spent_us in found.items():
        click.echo(f"{name:28}{spent_us:8.2f} us a request {spent_us - base_us:+8.2f} us {spent_us / base_us:8.2f} x")
