"""A real `tpuserve-serve` process for tests, on free loopback ports."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.free_ports import free_ports
from tpuserve_client import Client, DeadlineExceeded, State

EXECUTABLE = Path(sys.executable).with_name("tpuserve-serve")
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 120.0


@dataclass
class RunningServer:
    """A server process and its addresses."""

    process: subprocess.Popen[bytes]
    model: str
    grpc: str
    rest: str
    log: Path

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def final_states(self, model: str) -> dict[int, tuple[State, str]]:
        """Wait until each version of a model has loaded or failed, and return its state and error."""
        with Client(self.grpc) as client:
            while True:
                found = {one.version: (one.state, one.error) for one in client.status(model)}
                if all(state in (State.AVAILABLE, State.END) for state, _ in found.values()):
                    return found
                time.sleep(0.05)


@contextlib.contextmanager
def run_server(base_path: Path | str, log: Path, *flags: str, model: str = "m") -> Iterator[RunningServer]:
    """Start a server and wait until the model is ready. Stop the server at exit if it still runs."""
    of_model = (f"--model_name={model}", f"--model_base_path={base_path}")
    with run_configured_server(log, *of_model, *flags, model=model) as server:
        yield server


@contextlib.contextmanager
def run_configured_server(
    log: Path,
    *flags: str,
    model: str,
    credentials: grpc.ChannelCredentials | None = None,
    headers: Mapping[str, str] | None = None,
    check_log: bool = True,
) -> Iterator[RunningServer]:
    """Start a server with flags that configure its models.

    `credentials` are for a TLS port, and `headers` for a server that identifies its clients.
    """
    ports = free_ports(2)
    flags = (f"--rest_api_port={ports[1]}", *flags)
    with run_in_environment(
        log,
        ports,
        {},
        *flags,
        model=model,
        credentials=credentials,
        headers=headers,
        check_log=check_log,
    ) as server:
        yield server


@contextlib.contextmanager
def run_in_environment(
    log: Path,
    ports: Sequence[int],
    environment: Mapping[str, str],
    *flags: str,
    model: str,
    credentials: grpc.ChannelCredentials | None = None,
    executable: Path = EXECUTABLE,
    headers: Mapping[str, str] | None = None,
    check_log: bool = True,
) -> Iterator[RunningServer]:
    """Start a server with more environment variables. They or the flags set the REST port and the models.

    `ports` are free ones: gRPC's and REST's. `executable` may be the `tpuserve-serve` of another environment. With
    `check_log`, the log must have no traceback.
    """
    grpc_port, rest_port = ports
    command = [
        str(executable), f"--port={grpc_port}", "--bind_address=127.0.0.1", "--file_system_poll_wait_seconds=0.1",
        *flags,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    server = RunningServer(process, model, f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{rest_port}", log)
    try:
        if credentials is None:
            _wait_until_ready(server, headers)
        else:
            _wait_until_healthy(server.grpc, credentials)
        yield server
        assert not check_log or "Traceback" not in log.read_text(), log.read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(server: RunningServer, headers: Mapping[str, str] | None) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    with Client(server.grpc, headers=headers) as client:
        while True:
            try:
                return client.wait_until_ready(5.0, server.model)
            except DeadlineExceeded:
                assert server.process.poll() is None, f"the server ended: {server.log.read_text()}"
                if time.monotonic() > end_s:
                    raise


def _wait_until_healthy(address: str, credentials: grpc.ChannelCredentials) -> None:
    with grpc.secure_channel(address, credentials) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=START_TIMEOUT_S, wait_for_ready=True
        )
        assert any(reply.status == health_pb2.HealthCheckResponse.SERVING for reply in watch)
        watch.cancel()
