"""Sandbox: a model on the real service in a separate process, which measures each request and may end."""

import asyncio
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from tests.support.served_model import ServedModel
from tests.zoo.fork import Ended, Fork, Hung
from tests.zoo.protocols import Request
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod

# A run that takes longer has hung.
PATIENCE_S: Final = 3.0
# Memory that a process may take beyond that of the loaded model. The machine of the tests has other work.
MOST_BYTES: Final = 3 << 30


class Verdict(StrEnum):
    """How a request ended. FAILED is an error of the server: INTERNAL, 500."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    DIED = "died"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request: its time, the memory that it took at most, the error or the signal, and the response."""

    verdict: Verdict
    ms: float = 0.0
    mb: float = 0.0
    detail: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_end(self) -> bool:
        """Whether the process ended or hung."""
        return self.verdict in (Verdict.DIED, Verdict.HUNG)


class Sandbox(Fork):
    """The model `m` from the directory of a version."""

    def __init__(self, path: Path) -> None:
        """Take the directory of the version."""
        super().__init__(partial(_open_model, path))

    def send(self, request: Request) -> Outcome:
        """Send a request, in a new process if the last one has ended."""
        try:
            outcome: Outcome = self.ask(request, PATIENCE_S)
        except Hung:
            return Outcome(Verdict.HUNG, PATIENCE_S * 1e3)
        except Ended as error:
            return Outcome(Verdict.DIED, detail=str(error))
        return outcome


def _open_model(path: Path) -> Callable[[Request], Outcome]:
    model = ServedModel(path)
    model.__enter__()
    size = _status("VmSize") * 1024 + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    # A core of every death would fill the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return partial(_measured, asyncio.Runner(), model)


def _measured(runner: asyncio.Runner, model: ServedModel, request: Request) -> Outcome:
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    started_s = time.monotonic()
    outcome = runner.run(_send(model, request))
    ms = (time.monotonic() - started_s) * 1e3
    return replace(outcome, ms=ms, mb=max(0, _status("VmHWM") - before) / 1e3)


async def _send(model: ServedModel, request: Request) -> Outcome:
    if request.is_rest:
        transport = httpx.ASGITransport(model.rest)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            response = await client.post(request.path, content=request.body, headers=dict(request.headers))
        return judged_status(response.status_code, response.content, dict(response.headers))
    method = model.table[request.path]
    assert isinstance(method, UnaryMethod)
    try:
        body = await method.handle(request.body, CallContext(Deadline.never(), {}))
    except ServingError as error:
        return judged_code(error.code.name, error.message)
    return Outcome(Verdict.ANSWERED, body=bytes(body))


def judged_status(status: int, body: bytes, headers: Mapping[str, str]) -> Outcome:
    """Return the outcome of a response over HTTP."""
    if status == 200:
        return Outcome(Verdict.ANSWERED, body=body, headers=headers)
    verdict = Verdict.REFUSED if status < 500 else Verdict.FAILED
    return Outcome(verdict, detail=f"{status} {body[:300].decode(errors='replace')}")


def judged_code(code: str, message: str) -> Outcome:
    """Return the outcome of a call that ended with a code other than OK."""
    verdict = Verdict.FAILED if code in ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED") else Verdict.REFUSED
    return Outcome(verdict, detail=f"{code} {message[:300]}")


def _status(name: str) -> int:
    """Return a number of kB from the status of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)
