"""Tests that clients see the same behaviour on both hosts: real servers, with grpcio and httpx."""

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from tests.server.hosts import raw_http2
from tests.server.hosts.grpc_calls import UNLIMITED, server_stream, two_way_stream, unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tpuserve_server.core.terms.errors import Code

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    path = tmp_path_factory.mktemp("socket") / "grpc.sock"
    with running(grpc_socket_path=str(path), max_message_bytes=64 * MEBIBYTE) as host:
        yield host


@pytest.fixture
def channel(host: HostProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(host.grpc, UNLIMITED) as channel:
        yield channel


@pytest.fixture
async def aio_channel(host: HostProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(host.grpc, UNLIMITED) as channel:
        yield channel


def failure(call: Callable[..., bytes], message: bytes, **options: object) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as raised:
        call(message, **options)
    return raised.value.code(), raised.value.details()


def trailing(error: Any) -> dict[str, str]:  # noqa: ANN401 - grpcio's stubs make metadata of no type that can be read
    return {datum.key: datum.value for datum in error.trailing_metadata()}


@pytest.mark.parametrize("size", [0, 1, 1000, MEBIBYTE, 10 * MEBIBYTE, 64 * MEBIBYTE])
def test_unary_echoes_messages_of_every_size(channel: grpc.Channel, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert unary(channel, "Unary")(message) == message


def test_message_over_the_limit_is_refused_and_the_next_is_served(channel: grpc.Channel) -> None:
    size = 64 * MEBIBYTE + 1
    code, message = failure(unary(channel, "Unary"), bytes(size))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"Received message larger than max ({size} vs. {64 * MEBIBYTE})" in str(message)
    assert unary(channel, "Unary")(b"next") == b"next"


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_code_and_its_message_arrive(channel: grpc.Channel, code: Code) -> None:
    message = "größer, 100 % \n and a tab\t"
    got = failure(unary(channel, "Fail"), f"{code.name} {message}".encode())
    assert got == (grpc.StatusCode[code.name], message)


@pytest.mark.parametrize(
    ("retry_after_s", "pushback"), [("0.25", "250"), ("0.0101", "11"), ("0", "1"), ("1e9", "2147483647")]
)
def test_what_is_too_late_says_when_to_try_again(channel: grpc.Channel, retry_after_s: str, pushback: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Fail")(f"late {retry_after_s}".encode())
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert raised.value.details() == "come again later"
    assert trailing(raised.value)["grpc-retry-pushback-ms"] == pushback


def test_other_failures_do_not(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Fail")(b"RESOURCE_EXHAUSTED no")
    assert "grpc-retry-pushback-ms" not in trailing(raised.value)


@pytest.mark.parametrize(
    ("metadata", "priority"),
    [([], 0), ([("x-tpuserve-priority", "high")], 0), ([("x-one", "1"), ("x-tpuserve-priority", "low")], 1)],
)
def test_a_priority_reaches_the_method(channel: grpc.Channel, metadata: list[tuple[str, str]], priority: int) -> None:
    assert json.loads(unary(channel, "Context")(b"", metadata=metadata))["priority"] == priority


def test_a_priority_that_is_none_is_refused(channel: grpc.Channel) -> None:
    got = failure(unary(channel, "Context"), b"", metadata=[("x-tpuserve-priority", "urgent")])
    assert got == (grpc.StatusCode.INVALID_ARGUMENT, "x-tpuserve-priority must be high or low; was 'urgent'")


def test_unexpected_exception_is_internal_and_tells_nothing(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Fail")(b"bug")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.INTERNAL, "Internal error")


def test_an_internal_error_is_found_in_the_log_by_its_request_id(host: HostProcess, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Fail")(b"bug", metadata=[("x-request-id", "mine")])
    assert trailing(raised.value)["x-request-id"] == "mine"
    with pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Fail")(b"bug")
    made = trailing(raised.value)["x-request-id"]
    host.wait_for_error(f"Unexpected error in /echo.Echo/Fail request_id={made}")


def test_a_valid_request_id_comes_back_with_every_kind_of_call(channel: grpc.Channel) -> None:
    _, call = unary(channel, "Unary").with_call(b"x", metadata=[("x-request-id", "id-1")])
    assert trailing(call) == {"x-request-id": "id-1"}
    _, call = unary(channel, "Unary").with_call(b"x", metadata=[("x-request-id", "not valid")])
    assert trailing(call) == {}
    each = two_way_stream(channel, "Each")(iter([b"a"]), metadata=[("x-request-id", "id-2")])
    assert [*each] == [b"a"]
    assert trailing(each) == {"x-request-id": "id-2"}
    count = two_way_stream(channel, "Count")(iter([b"1"]), metadata=[("x-request-id", "id-3")])
    with pytest.raises(grpc.RpcError):
        list(count)
    assert trailing(count) == {"x-request-id": "id-3"}


def test_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    got = failure(unary(channel, "Nothing"), b"")
    assert got == (grpc.StatusCode.UNIMPLEMENTED, "Unknown method /echo.Echo/Nothing")


def test_metadata_and_deadline_reach_the_method(channel: grpc.Channel) -> None:
    metadata = [("x-one", "1"), ("x-two", "a"), ("x-two", "b"), ("x-raw-bin", b"\x00\xff")]
    context = json.loads(unary(channel, "Context")(b"", metadata=metadata, timeout=100))
    assert context["metadata"]["x-one"] == "1"
    assert context["metadata"]["x-two"] == "a,b"
    assert context["metadata"]["x-raw-bin"] == "AP8"
    assert not {"te", "content-type", "grpc-timeout", "host"} & context["metadata"].keys()
    assert 50 < context["deadline"] < 102  # grpcio rounds up to whole seconds


def test_without_a_timeout_there_is_no_deadline(channel: grpc.Channel) -> None:
    assert json.loads(unary(channel, "Context")(b""))["deadline"] is None


def test_passed_deadline_cancels_the_method(host: HostProcess, channel: grpc.Channel) -> None:
    unary(channel, "Unary")(b"")  # connect first, so that the next call starts before its deadline
    code, _ = failure(unary(channel, "Held"), b"", timeout=5)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    host.wait_for("cancelled")


def test_cancelled_call_cancels_the_method(host: HostProcess, channel: grpc.Channel) -> None:
    call = unary(channel, "Held").future(b"")
    host.wait_for("held")
    call.cancel()
    host.wait_for("cancelled")


def test_lost_connection_cancels_the_method(host: HostProcess) -> None:
    channel = grpc.insecure_channel(host.grpc)
    call = unary(channel, "Held").future(b"")
    host.wait_for("held")
    channel.close()
    assert call.code() is grpc.StatusCode.CANCELLED
    host.wait_for("cancelled")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_read(channel: grpc.Channel, compression: grpc.Compression) -> None:
    message = b"squeeze me " * 10_000
    assert unary(channel, "Size")(message, compression=compression) == b"%d" % len(message)


def test_compressed_request_over_the_limit_is_refused(channel: grpc.Channel) -> None:
    code, message = failure(unary(channel, "Size"), bytes(65 * MEBIBYTE), compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in str(message)


async def test_server_stream_delivers_its_messages_before_its_status(aio_channel: grpc.aio.Channel) -> None:
    call = server_stream(aio_channel, "Count")(b"3")
    assert [await call.read() for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.details() == "counted, and that is all"


async def test_two_way_stream_answers_while_the_client_still_sends(aio_channel: grpc.aio.Channel) -> None:
    call = two_way_stream(aio_channel, "Each")()
    for message in (b"a", b"", b"c" * MEBIBYTE):
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


def test_methods_see_the_address_of_the_connection(host: HostProcess, channel: grpc.Channel) -> None:
    assert unary(channel, "Client")(b"", metadata=[("x-forwarded-for", "203.0.113.1")]) == b"127.0.0.1"
    with grpc.insecure_channel(host.listening["grpc_socket"]) as local:
        assert unary(local, "Client")(b"") == b"None"


async def test_metadata_over_the_limit_ends_its_call_alone(aio_channel: grpc.aio.Channel) -> None:
    other = two_way_stream(aio_channel, "Each")()
    await other.write(b"a")
    assert await other.read() == b"a"
    for metadata in ([("x-long", "x" * 100_000)], [(f"x-{index}", "x" * 10_000) for index in range(10)]):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await unary(aio_channel, "Unary")(b"", metadata=metadata, timeout=PATIENCE_S)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await other.write(b"b")
    assert await other.read() == b"b"
    await other.done_writing()
    assert await other.code() is grpc.StatusCode.OK


async def test_cancelled_stream_cancels_the_method(host: HostProcess, aio_channel: grpc.aio.Channel) -> None:
    call = server_stream(aio_channel, "Watch")(b"")
    assert await call.read() == b"watching"
    call.cancel()
    await asyncio.to_thread(host.wait_for, "cancelled")


async def test_deadline_ends_a_stream(host: HostProcess, aio_channel: grpc.aio.Channel) -> None:
    await unary(aio_channel, "Unary")(b"")  # connect first, so that the next call starts before its deadline
    call = server_stream(aio_channel, "Watch")(b"", timeout=5)
    assert await call.read() == b"watching"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.to_thread(host.wait_for, "cancelled")


async def test_two_hundred_calls_at_once(aio_channel: grpc.aio.Channel) -> None:
    messages = [b"%d" % number * 100 for number in range(200)]
    call = unary(aio_channel, "Unary")
    assert await asyncio.gather(*(call(message) for message in messages)) == messages


def test_unix_socket_serves_the_same_table(host: HostProcess) -> None:
    with grpc.insecure_channel(host.listening["grpc_socket"]) as channel:
        assert unary(channel, "Unary")(b"local") == b"local"


def test_rest_reaches_its_application(host: HostProcess) -> None:
    response = httpx.post(f"{host.rest}/v1/models/m:predict?x=1", content=b"body", timeout=PATIENCE_S)
    assert (response.status_code, response.content, response.headers["x-echo"]) == (200, b"body", "1")


@pytest.mark.parametrize("size", [0, 1, MEBIBYTE, 64 * MEBIBYTE])
def test_rest_bodies_of_every_size(host: HostProcess, size: int) -> None:
    assert httpx.post(host.rest, content=bytes(size), timeout=PATIENCE_S).content == bytes(size)


def test_rest_refuses_a_body_before_it_has_all_come(host: HostProcess) -> None:
    # httpx stops sending at an early response, or when the connection ends after it. Both are a response.
    response = httpx.post(f"{host.rest}/limited", content=(bytes(MEBIBYTE) for _ in range(3)), timeout=PATIENCE_S)
    assert response.status_code == 413


def framed(content: bytes, chunked: bool) -> bytes:
    if not chunked:
        return b"content-length: %d\r\n\r\n%b" % (len(content), content)
    return b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", [b"/limited", b"/unread"])
def test_rest_client_that_writes_all_before_it_reads_gets_its_refusal(
    host: HostProcess, path: bytes, chunked: bool
) -> None:
    address, port = host.listening["rest"].split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" % path
        client.sendall(head + framed(bytes(20 * MEBIBYTE), chunked))
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_answer_to_head_is_not_taken_for_the_next_one(host: HostProcess) -> None:
    address, port = host.listening["rest"].split(":")
    with contextlib.closing(http.client.HTTPConnection(address, int(port), timeout=PATIENCE_S)) as connection:
        for method in ("HEAD", "GET", "HEAD", "GET"):
            connection.request(method, "/hello")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"" if method == "HEAD" else b"hello")


def test_rest_hears_that_its_client_left(host: HostProcess) -> None:
    address, port = host.listening["rest"].split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /held HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx")
        host.wait_for("held")
    host.wait_for("http.disconnect")


def test_gzipped_rest_body_is_passed_on_as_it_is(host: HostProcess) -> None:
    body = gzip.compress(b"{}")
    assert httpx.post(host.rest, content=body, headers={"content-encoding": "gzip"}, timeout=PATIENCE_S).content == body


@pytest.mark.parametrize("offer", [b"h2c", b"something/1.0"])
def test_offer_of_another_protocol_is_ignored(host: HostProcess, offer: bytes) -> None:
    address, port = host.listening["rest"].split(":")
    head = b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: %b\r\n" % offer
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        # Send the body in two parts, and another request after it.
        client.sendall(head + b"http2-settings: AAMAAABkAAQAAP__\r\ncontent-length: 4\r\n\r\nbo")
        client.sendall(b"dyGET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert b"body" in answers
    assert answers.endswith(b"hello")


def test_a_websocket_is_refused_without_a_line_in_the_log(host: HostProcess) -> None:
    address, port = host.listening["rest"].split(":")
    head = b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(head + b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 403 ")
    assert not [line for line in host.errors if "websocket" in line.lower()]


def test_headers_without_end_are_cut_off(host: HostProcess) -> None:
    address, port = host.listening["rest"].split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(b"GET /hello HTTP/1.1\r\nhost: x\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(1000):
                client.sendall(b"a%d: %b\r\n" % (number, bytes(1 << 10).replace(b"\0", b"a")))
        with contextlib.suppress(ConnectionError):
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"GET /v1/models/\xff HTTP/1.1", b"HTTP/1.1 400 "),
        ("GET /é HTTP/1.1".encode(), b"HTTP/1.1 400 "),
        (b"GET /a b HTTP/1.1", b"HTTP/1.1 400 "),
        (b"GET /hello HTTP/1.0", b"HTTP/1.1 400 "),
        (b"\x16\x03\x01", b""),
    ],
)
def test_what_is_no_request_is_refused(host: HostProcess, request_line: bytes, answer: bytes) -> None:
    address, port = host.listening["rest"].split(":")
    with socket.create_connection((address, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(request_line + b"\r\nhost: x\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


@pytest.mark.parametrize("path", [b"/echo.Echo/\xff", b"/echo.Echo/\xc3\xa9\xed\xa0\x80", b"/\xe9%C3%A9"])
def test_call_whose_path_has_bytes_that_are_no_text_gets_a_response(host: HostProcess, path: bytes) -> None:
    with contextlib.closing(raw_http2.connect(host.grpc)) as client:
        client.sendall(raw_http2.grpc_call(1, path.decode("latin-1"), encoding="latin-1"))
        raw_http2.wait_for_headers(client, 1)
        client.sendall(raw_http2.grpc_call(3, "/echo.Echo/Unknown"))
        raw_http2.wait_for_headers(client, 3)


def test_method_whose_path_is_no_text_is_unknown(channel: grpc.Channel) -> None:
    code, message = failure(channel.unary_unary("/echo.Echo/%ff"), b"")
    assert (code, message) == (grpc.StatusCode.UNIMPLEMENTED, "Unknown method /echo.Echo/%ff")
