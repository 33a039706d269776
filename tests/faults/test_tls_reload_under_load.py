"""Tests that new certificates lose no request and end no stream."""

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from tests.faults.test_tls_reload import NEW, OLD, ReloadingHost, post, request, texts
from tests.server.hosts.grpc_calls import two_way_stream, unary
from tests.server.hosts.host_process import PATIENCE_S, running

RELOADS = 5


@pytest.fixture(params=[0.0])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReloadingHost]:
    file = tmp_path / "tls.json"
    environment = {**os.environ, "ECHO_TLS": str(file)}
    with running(environment, tls=texts(OLD, OLD), tls_poll_wait_s=request.param) as host:
        yield ReloadingHost(host, file)


class Load:
    """Four clients, each with its own way to connect. They send requests until the end of the block."""

    def __init__(self, host: ReloadingHost) -> None:
        self._host = host
        self._stopping = threading.Event()
        self._answered = [0, 0, 0, 0]

    def __enter__(self) -> "Load":
        self._stack = ExitStack()
        kept_channel = self._stack.enter_context(self._host.channel(OLD))
        # It connects again after a response that requests it.
        kept_connection = self._host.kept_rest(OLD)
        self._stack.callback(kept_connection.close)
        sends: list[Callable[[], bytes]] = [
            lambda: unary(kept_channel, "Unary")(b"body", timeout=PATIENCE_S),
            lambda: request(kept_connection),
            self._over_new_channel,
            self._over_new_connection,
        ]
        self._pool = self._stack.enter_context(ThreadPoolExecutor(len(sends)))
        self._running = [self._pool.submit(self._run, number, send) for number, send in enumerate(sends)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._stack.close()

    def wait_for_progress(self) -> None:
        """Wait until each client has sent a request after this call and got its answer."""
        before = list(self._answered)

        def all_have_moved() -> bool:
            for client in self._running:
                if client.done():
                    client.result()
            return all(now >= then + 2 for now, then in zip(self._answered, before, strict=True))

        self._host.wait_until(all_have_moved)

    def stop(self) -> list[int]:
        """Stop the clients and return the number of answers of each. Raises the first error of a client."""
        self._stopping.set()
        return [client.result(PATIENCE_S) for client in self._running]

    def _run(self, number: int, send: Callable[[], bytes]) -> int:
        while not self._stopping.is_set():
            assert send() == b"body"
            self._answered[number] += 1
        return self._answered[number]

    def _over_new_channel(self) -> bytes:
        with self._host.channel(OLD, ("grpc.use_local_subchannel_pool", 1)) as channel:
            answer: bytes = unary(channel, "Unary")(b"body", timeout=PATIENCE_S)
            return answer

    def _over_new_connection(self) -> bytes:
        with self._host.rest(OLD) as connection:
            return post(connection)


def test_reloads_under_load_lose_no_request_and_end_no_stream(host: ReloadingHost) -> None:
    sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with host.channel(OLD) as channel, Load(host) as load:
        received = two_way_stream(channel, "Each")(iter(sent.get, None))
        for number in range(RELOADS):
            sent.put(b"%d" % number)
            assert next(received) == b"%d" % number
            load.wait_for_progress()
            host.reload(json.dumps(texts(OLD, OLD)))
            assert host.process.wait_for("certificates")["reload_failure"] == ""
            load.wait_for_progress()
        sent.put(None)
        with pytest.raises(StopIteration):
            next(received)
        assert min(load.stop()) > 2 * RELOADS


@pytest.mark.parametrize("host", [0.05], indirect=True)
def test_renewed_file_is_noticed_without_a_signal(host: ReloadingHost) -> None:
    # The file does not exist yet, which the server reports once, not at each look.
    host.process.wait_for_error("The server keeps its certificates: ECHO_TLS does not exist")
    assert host.serves(OLD)
    host.replace(json.dumps(texts(NEW, NEW)))
    host.wait_until(lambda: host.serves(NEW))
    # The older server ends a moment later (decision 85).
    host.wait_until(lambda: not host.serves(OLD))
    assert sum("keeps its certificates" in line for line in host.process.errors) == 1


def test_stream_survives_a_certificate_of_another_authority(host: ReloadingHost) -> None:
    sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with host.channel(OLD) as channel:
        received = two_way_stream(channel, "Each")(iter(sent.get, None))
        sent.put(b"before")
        assert next(received) == b"before"
        host.reload(json.dumps({**texts(OLD, OLD), "client_ca": NEW.cert_pem.bytes().decode()}))
        assert host.process.wait_for("certificates")["reload_failure"] == ""
        sent.put(b"after")
        assert next(received) == b"after"
        sent.put(None)
    with host.channel(OLD) as stranger, pytest.raises(grpc.RpcError):
        unary(stranger, "Unary")(b"stranger", timeout=PATIENCE_S)
