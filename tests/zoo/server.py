"""ZooServer: a real server of many models of the zoo, which measures each request like a sandbox."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import httpx
import psutil

from tests.e2e.running_server import START_TIMEOUT_S, RunningServer, run_configured_server
from tests.faults.bystander import Bystander
from tests.zoo.protocols import Request
from tests.zoo.sandbox import PATIENCE_S, Outcome, Verdict, judged_code, judged_status

UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class ZooServer:
    """A running server and connections to it, which stay open from request to request."""

    def __init__(
        self, start: Callable[[], AbstractContextManager[RunningServer]], patience_s: float = PATIENCE_S
    ) -> None:
        """Take the function that starts the server, again after it has ended, and the longest request."""
        self._start = start
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._running = stack.enter_context(self._start())
            self._channel: Any = stack.enter_context(grpc.insecure_channel(self._running.grpc, UNLIMITED))
            self._http = stack.enter_context(httpx.Client(base_url=self._running.rest, timeout=self._patience_s))
            self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def bystander(self, request: Request) -> Bystander:
        """Return another process that repeats a request over REST, which the server answers."""
        expected = self._http.post(request.path, content=request.body, headers={"accept-encoding": "identity"}).text
        address = self._running.rest.removeprefix("http://")
        return Bystander(address, request.path, request.body.decode(), expected, 0.005)

    def send(self, request: Request) -> Outcome:
        """Send a request, and check that every process of the server still runs."""
        before = [_reset_peak(one) for one in self._family]
        started_s = time.monotonic()
        outcome = self._send(request)
        ms = (time.monotonic() - started_s) * 1e3
        if outcome.verdict is Verdict.HUNG:
            return outcome
        try:
            mb = sum(max(0, _peak(one) - was) for one, was in zip(self._family, before, strict=True)) / 1e6
        except (OSError, psutil.NoSuchProcess):
            mb = 0.0
        if not all(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in self._family):
            if self._running.process.poll() is None:
                self._wait_until_ready()
            else:
                self._stack.close()
                self.__enter__()
            return Outcome(Verdict.DIED, detail=f"a process ended: {outcome.detail}")
        return Outcome(outcome.verdict, ms, mb, outcome.detail, outcome.body, outcome.headers)

    def _send(self, request: Request) -> Outcome:
        if request.is_rest:
            try:
                answer = self._http.post(request.path, content=request.body, headers=dict(request.headers))
            except httpx.TimeoutException:
                return Outcome(Verdict.HUNG, self._patience_s * 1e3)
            except httpx.TransportError as error:
                return Outcome(Verdict.FAILED, detail=repr(error))
            return judged_status(answer.status_code, answer.content, dict(answer.headers))
        try:
            body = self._channel.unary_unary(request.path)(request.body, timeout=self._patience_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return Outcome(Verdict.HUNG, self._patience_s * 1e3)
            return judged_code(error.code().name, error.details() or "")
        return Outcome(Verdict.ANSWERED, body=body)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with suppress(httpx.TransportError):
                if self._http.get("/readyz").status_code == 200:
                    self._family = self._processes()
                    return
        raise TimeoutError("The server is not ready.")

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._running.process.pid)
        return [parent, *parent.children(recursive=True)]


def zoo_server(paths: Sequence[Path], log: Path, patience_s: float = PATIENCE_S) -> ZooServer:
    """Return a server of the models with these base paths, each under the name of its folder."""
    models = "".join(
        f'config {{ name: "{path.name}" base_path: "{path.resolve()}" model_platform: "tensorflow" }}' for path in paths
    )
    config = log.with_suffix(".config")
    config.write_text(f"model_config_list {{ {models} }}")
    flags = (f"--model_config_file={config}", "--max_num_load_retries=0")
    return ZooServer(lambda: run_configured_server(log, *flags, model=paths[0].name, check_log=False), patience_s)


def _reset_peak(process: psutil.Process) -> int:
    """Begin to measure the peak of a process's memory, and return its memory in bytes."""
    with suppress(OSError):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _peak(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
