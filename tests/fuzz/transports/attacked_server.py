"""A real server of two models under transport attacks: starts it, sends attacks, and checks it after each round."""

import contextlib
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.contract.serving_models import save_kinds
from tests.e2e.running_server import START_TIMEOUT_S, run_configured_server
from tests.faults.conftest import model_config
from tests.faults.fault_models import save_main, save_slow
from tests.faults.faulted_server import OIP_GRPC, OIP_REST, TF_GRPC, TF_REST, VERTEX_ROUTE, FaultedServer, good_body
from tests.fuzz.target import expect
from tests.fuzz.transports.http1_attack import Http1Attack
from tests.fuzz.transports.http2_attack import Http2Attack

# Time for the server to answer an attack. An attack that keeps its connection open ends after it.
_ANSWER_S = 0.02
_MEMORY_MB = 96.0
# Connections and files that may remain while the server closes the last ones.
_DESCRIPTORS = 64
_SETTLE_S = 30.0


@dataclass
class AttackedServer:
    """A running server. `sent` counts attacks, and `answered` those that the server answered with any byte."""

    server: FaultedServer
    transport: str
    sent: int = 0
    answered: int = 0
    _memory_mb: float = 0.0
    _descriptors: int = 0
    _bodies: tuple[bytes, ...] = field(default=())

    def __post_init__(self) -> None:
        protocols = (TF_GRPC, OIP_GRPC) if self.transport == "http2" else (TF_REST, OIP_REST)
        self._bodies = tuple(good_body(protocol) for protocol in protocols)
        # The first attacks and requests fill caches and start threads.
        for seed in range(50):
            self._send(seed)
        self.server.check()
        self._memory_mb, self._descriptors = self.server.memory_mb(), self._count_descriptors()

    def attack(self, seeds: range) -> None:
        """Send an attack for each seed while another client sends good requests. Then check the server."""
        with self.server.bystander() as others:
            for seed in seeds:
                self._send(seed)
        expect(others.wrong == (), f"another client's requests fail: {others.wrong[:3]}")
        self.server.check()
        self._check_level()

    def _send(self, seed: int) -> None:
        rng = random.Random(seed)
        attack = (Http2Attack if self.transport == "http2" else Http1Attack)(rng, self._bodies)
        address = self.server.grpc if self.transport == "http2" else self.server.rest.removeprefix("http://")
        host, port = address.rsplit(":", 1)
        self.sent += 1
        # Only connections that the server ends in the middle of an attack, or does not answer in time.
        with socket.create_connection((host, int(port))) as client, contextlib.suppress(OSError):
            client.settimeout(_ANSWER_S)
            for piece in attack.pieces():
                client.sendall(piece)
            if rng.random() < 0.3:
                client.shutdown(socket.SHUT_WR)
            self.answered += bool(client.recv(1 << 16))
            if rng.random() < 0.2:
                # The connection ends with a reset.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def _check_level(self) -> None:
        memory_mb = self.server.settled_mb(self._memory_mb + _MEMORY_MB)
        expect(memory_mb <= self._memory_mb + _MEMORY_MB, f"{self._memory_mb:.0f} MB before, {memory_mb:.0f} MB after")
        deadline = time.monotonic() + _SETTLE_S
        while (now := self._count_descriptors()) > self._descriptors + _DESCRIPTORS and time.monotonic() < deadline:
            time.sleep(0.1)
        expect(now <= self._descriptors + _DESCRIPTORS, f"{self._descriptors} descriptors before, {now} after")

    def _count_descriptors(self) -> int:
        parent = psutil.Process(self.server.running.process.pid)
        return sum(process.num_fds() for process in [parent, *parent.children(recursive=True)])


@contextlib.contextmanager
def attacked_server(transport: str) -> Iterator[AttackedServer]:
    """Start a server like the one of the fault tests. At the end its log must have no traceback."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_main(folder / "m" / "3")
        save_kinds(folder / "kinds" / "1")
        save_slow(folder / "slow" / "1")
        config = folder / "models.config"
        config.write_text(model_config(folder, "m", "kinds", "slow"))
        flags = (
            f"--model_config_file={config}",
            "--model_name=m",
            f"--vertex_predict_route={VERTEX_ROUTE}",
            "--header_timeout_seconds=2",
            # The model `slow`, without which the server would not become ready for minutes.
            "--allowed_ops=WriteFile",
        )
        with (
            run_configured_server(folder / "log", *flags, model="m", check_log=False) as running,
            FaultedServer(running) as server,
        ):
            server.wait_until_ready(START_TIMEOUT_S)
            yield AttackedServer(server, transport)
            log = running.log.read_text(errors="replace")
            expect("Traceback" not in log, log[-5000:])
