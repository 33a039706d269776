"""Tests that the host admits or refuses a gRPC call before they read its message, for every method of the server."""

import asyncio
import contextlib
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.fault_row import FaultRow
from tests.faults.guarded_application import CREDENTIALS_VARIABLE, FOLDER_VARIABLE, make_server
from tests.faults.test_guard import GuardedProcess
from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import UNLIMITED
from tests.server.hosts.host_process import PATIENCE_S
from tests.support.access import KeyFile
from tpuserve_server.access.access import Role
from tpuserve_server.protocols.rpc import GuardedMethod, GuardedUnary

PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
CLASSIFY: Final = "/tensorflow.serving.PredictionService/Classify"
CHECK: Final = "/grpc.health.v1.Health/Check"
MEBIBYTE: Final = 1 << 20
# No method can decode this body, so no method acts on it.
MALFORMED: Final = b"\xff"
LARGE: Final = 60 * MEBIBYTE
# The default limit of a message.
OVERSIZED: Final = 64 * MEBIBYTE + 1
Record = Callable[[FaultRow], None]


@dataclass(frozen=True)
class Entrance:
    """A server with credentials, the methods of its table, and the keys of its clients: of each role, and of all."""

    process: GuardedProcess
    methods: dict[str, GuardedMethod]
    keys: KeyFile

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        page = httpx.get(f"{self.process.rest}/metrics", headers=self.keys.bearer("read"), timeout=PATIENCE_S).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def guarded_paths(self) -> list[str]:
        return [path for path, method in self.methods.items() if method.access.roles is not None]


@pytest.fixture(scope="module")
def entrance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entrance]:
    folder = tmp_path_factory.mktemp("entrance")
    (folder / "models").mkdir()
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    keys = KeyFile(folder / "credentials")
    for role in Role:
        keys.add(role.value, role.value)
    keys.add("all", ",".join(role.value for role in Role))
    environment = {**os.environ, FOLDER_VARIABLE: str(folder), CREDENTIALS_VARIABLE: str(keys.path)}
    process = GuardedProcess.started_in(environment)
    try:
        yield Entrance(process, dict(make_server(folder).rpc), keys)
    finally:
        process.close()


def metadata_of(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(headers.items())


def stream(channel: grpc.aio.Channel, path: str, headers: dict[str, str]) -> Any:  # noqa: ANN401  # grpcio's stubs type no call without a serializer.
    """Send the headers of a call."""
    return channel.stream_stream(path)(metadata=metadata_of(headers), timeout=PATIENCE_S)


def unary(channel: grpc.Channel | grpc.aio.Channel, path: str) -> Any:  # noqa: ANN401  # As above.
    return channel.unary_unary(path)


async def half_open(channel: grpc.aio.Channel, path: str, headers: dict[str, str]) -> tuple[str, str]:
    """Send the headers of a call and nothing else, and return its status and message."""
    call = stream(channel, path, headers)
    code = await call.code()
    return code.name, await call.details() or ""


async def on_channel(entrance: Entrance, act: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    async with grpc.aio.insecure_channel(entrance.process.grpc, UNLIMITED) as channel:
        await act(channel)


def other_role(method: GuardedMethod) -> str:
    """Return a role that a method does not accept."""
    return next(role.value for role in Role if role not in (method.access.roles or ()))


async def test_no_method_waits_for_the_message_of_a_client_that_it_refuses(entrance: Entrance, record: Record) -> None:
    paths = entrance.guarded_paths()
    # All kinds and protocols: a stream, a service of TensorFlow Serving, Triton's and the reflection.
    assert {path.split(".")[0] for path in paths} == {"/tensorflow", "/inference", "/grpc"}
    assert {isinstance(entrance.methods[path], GuardedUnary) for path in paths} == {True, False}

    async def ask(channel: grpc.aio.Channel) -> None:
        for path in paths:
            code, message = await half_open(channel, path, {})
            assert (code, f"{path} needs a credential" in message) == ("UNAUTHENTICATED", True), (path, message)
            unknown = await half_open(channel, path, {"authorization": "Bearer tpuserve_unknown"})
            assert (unknown[0], "unknown to this server" in unknown[1]) == ("UNAUTHENTICATED", True), path
            role = other_role(entrance.methods[path])
            code, message = await half_open(channel, path, entrance.keys.bearer(role))
            assert (code, f"'{role}' has the role {role}" in message) == ("PERMISSION_DENIED", True), (path, message)

    await on_channel(entrance, ask)
    fault = f"headers without a message and a credential, {len(paths)} methods"
    expected = "UNAUTHENTICATED, PERMISSION_DENIED"
    record(FaultRow(18, fault, "gRPC", expected, expected))


async def test_an_admitted_call_waits_for_its_message(entrance: Entrance) -> None:
    async def ask(channel: grpc.aio.Channel) -> None:
        for path, method in entrance.methods.items():
            headers = {} if method.access.roles is None else entrance.keys.bearer("all")
            call = stream(channel, path, headers)
            # By now, a refusal of the first call has probably arrived.
            assert (await half_open(channel, PREDICT, {}))[0] == "UNAUTHENTICATED"
            assert not call.done(), path
            await call.write(MALFORMED)
            await call.done_writing()
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            assert (await call.code()).name not in ("UNAUTHENTICATED", "PERMISSION_DENIED"), path

    await on_channel(entrance, ask)


def status_of(entrance: Entrance, path: str, body: bytes, headers: dict[str, str]) -> str:
    with grpc.insecure_channel(entrance.process.grpc, UNLIMITED) as channel:
        try:
            unary(channel, path)(body, metadata=metadata_of(headers), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_the_credential_counts_before_the_size_and_the_content(entrance: Entrance) -> None:
    for body, admitted in ((bytes(OVERSIZED), "RESOURCE_EXHAUSTED"), (MALFORMED, "INVALID_ARGUMENT")):
        assert status_of(entrance, PREDICT, body, {}) == "UNAUTHENTICATED"
        assert status_of(entrance, PREDICT, body, entrance.keys.bearer("read")) == "PERMISSION_DENIED"
        assert status_of(entrance, PREDICT, body, entrance.keys.bearer("predict")) == admitted


def test_a_refused_call_counts_once_and_never_in_the_budget(entrance: Entrance) -> None:
    counted = {"method": "Classify", "code": "UNAUTHENTICATED", "protocol": "grpc"}
    before = entrance.metric("tpuserve_requests_total", **counted)
    with contextlib.closing(raw_http2.connect(entrance.process.grpc)) as client:
        # The first part of a message. The client neither sends the rest nor ends its calls.
        unfinished = struct.pack(">BI", 0, LARGE) + bytes(20_000)
        for stream in (1, 3):
            client.sendall(raw_http2.grpc_call(stream, CLASSIFY) + raw_http2.data(stream, unfinished))
        assert raw_http2.ended_streams(client, 2) == {1, 3}
        assert entrance.metric("tpuserve_budget_bytes", budget="receiving", kind="in_use") == 0
        # The connection stays usable.
        client.sendall(raw_http2.grpc_call(5, CHECK) + raw_http2.data(5, bytes(5)) + raw_http2.empty_data(5, end=True))
        raw_http2.wait_for_data(client, 5)
    assert entrance.metric("tpuserve_requests_total", **counted) - before == 2


def peak_bytes(process: GuardedProcess) -> int:
    """Return the sum of the largest resident memory of each process of the server since `forget_peaks`."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids(process)]
    return sum(int(text.partition("VmHWM:")[2].split()[0]) << 10 for text in texts)


def forget_peaks(process: GuardedProcess) -> None:
    for pid in pids(process):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def pids(process: GuardedProcess) -> list[int]:
    parent = psutil.Process(process.process.pid)
    return [each.pid for each in (parent, *parent.children(recursive=True))]


async def test_large_messages_of_refused_clients_take_no_memory(entrance: Entrance, record: Record) -> None:
    """The bound is two of the eight messages."""
    process = entrance.process
    forget_peaks(process)
    before_bytes = peak_bytes(process)

    async def offer(channel: grpc.aio.Channel) -> None:
        calls = [unary(channel, PREDICT)(bytes(LARGE), timeout=PATIENCE_S) for _ in range(8)]
        codes = await asyncio.gather(*(call.code() for call in calls))
        assert {code.name for code in codes} == {"UNAUTHENTICATED"}

    await on_channel(entrance, offer)
    peak = peak_bytes(process)
    print(f"\n{(peak - before_bytes) / MEBIBYTE:.1f} MiB for 8 messages of 60 MiB")
    assert peak - before_bytes < 2 * LARGE
    fault = "8 messages of 60 MiB without a credential"
    memory_mb = (before_bytes / 1e6, peak / 1e6)
    record(FaultRow(18, fault, "gRPC", "UNAUTHENTICATED", "UNAUTHENTICATED", *memory_mb))


def test_a_large_message_of_an_open_method_is_refused_before_it_arrives(entrance: Entrance) -> None:
    with contextlib.closing(raw_http2.connect(entrance.process.grpc)) as client:
        client.sendall(raw_http2.grpc_call(1, CHECK) + raw_http2.data(1, struct.pack(">BI", 0, MEBIBYTE + 1)))
        assert raw_http2.ended_streams(client, 1) == {1}
