"""Tests for the load tests' gRPC client over TLS and with custom headers, against gRPC's own server."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import gevent
import grpc
import pytest

from tests.support.certificates import Authority, ServerTls
from tests.support.free_ports import free_ports
from tpuserve_client import InvalidArgument, Tls
from tpuserve_loadtests.traffic.channel import Channel
from tpuserve_loadtests.traffic.connection import GrpcError

ECHO = "/test/Echo"


class Echo(grpc.GenericRpcHandler):
    """An echo method that records the metadata of the last call."""

    def __init__(self) -> None:
        self.metadata: dict[str, str | bytes] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        self.metadata = dict(handler_call_details.invocation_metadata)
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def serving(methods: Echo, tls: ServerTls) -> Iterator[str]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), handlers=[methods], options=unlimited)
    port = server.add_secure_port("127.0.0.1:0", tls.credentials())
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture
def target(authority: Authority) -> Iterator[str]:
    with serving(Echo(), ServerTls(authority.server)) as target:
        yield target


def test_many_calls_and_large_ones_share_a_connection(target: str, authority: Authority) -> None:
    messages = [bytes([number]) * size for number in range(20) for size in (10, 100_000)] + [bytes(5_000_000)]
    with closing(Channel(target, 10.0, Tls(ca=authority.ca))) as channel:
        calls = [gevent.spawn(channel.call, ECHO, message) for message in messages]
        gevent.joinall(calls, raise_error=True)
    assert [call.value for call in calls] == messages


def test_headers_are_the_calls_metadata(authority: Authority) -> None:
    echo = Echo()
    headers = {"authorization": "Bearer secret", "x-trace-bin": "AAH/", "host": "model.example"}
    with (
        serving(echo, ServerTls(authority.server)) as target,
        closing(Channel(target, 10.0, Tls(ca=authority.ca), headers)) as channel,
    ):
        for _ in range(2):
            channel.call(ECHO, b"")
            assert echo.metadata["authorization"] == "Bearer secret"
            assert echo.metadata["x-trace-bin"] == b"\0\1\xff"
            assert "host" not in echo.metadata  # it became the authority


def test_host_that_is_given_is_whom_requests_are_for() -> None:
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"

        def listen() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # an empty SETTINGS frame
                while b"grpc-timeout" not in heard:
                    heard.extend(connected.recv(4096))

        thread = threading.Thread(target=listen, name="listening")
        thread.start()
        headers = {"host": "model.example"}
        with closing(Channel(place, 10.0, headers=headers)) as channel, pytest.raises(GrpcError):
            channel.call(ECHO, b"")
        thread.join()
    assert b":authority\x0dmodel.example" in heard
    assert place.encode() not in heard


def test_server_that_is_not_to_be_trusted_gets_nothing(authority: Authority) -> None:
    echo = Echo()
    with serving(echo, ServerTls(authority.issue("model.example"))) as target:
        for tls, message in [
            (Tls(), "local issuer certificate|self-signed certificate in certificate chain"),
            (Tls(ca=authority.ca), "not valid for '127.0.0.1'"),
        ]:
            with closing(Channel(target, 10.0, tls)) as channel, pytest.raises(GrpcError, match=message) as raised:
                channel.call(ECHO, b"secret")
            assert raised.value.code == "UNAVAILABLE"
        assert echo.metadata == {}
        with closing(Channel(target, 10.0, Tls(authority.ca, server_name="model.example"))) as channel:
            assert channel.call(ECHO, b"known") == b"known"


def test_certificate_is_shown_to_a_server_that_wants_one(authority: Authority) -> None:
    own = authority.issue("client@example.org")
    with serving(Echo(), ServerTls(authority.server, authority.ca)) as target:
        with closing(Channel(target, 10.0, Tls(authority.ca, own.cert, own.key))) as channel:
            assert channel.call(ECHO, b"known") == b"known"
        with closing(Channel(target, 10.0, Tls(authority.ca))) as channel, pytest.raises(GrpcError) as raised:
            channel.call(ECHO, b"")
        assert raised.value.code == "UNAVAILABLE"


def test_server_without_http2_is_named_as_such(authority: Authority) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.cert, authority.server.key)
    with (
        accepting(context) as target,
        closing(Channel(target, 5.0, Tls(ca=authority.ca))) as channel,
        pytest.raises(GrpcError, match="does not offer HTTP/2 over TLS"),
    ):
        channel.call(ECHO, b"")


@contextmanager
def accepting(context: ssl.SSLContext) -> Iterator[str]:
    """Accept one connection in a thread, complete its TLS handshake and close it. Yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            plain, _ = listener.accept()
            with plain, context.wrap_socket(plain, server_side=True):
                pass

        thread = threading.Thread(target=accept, name="accepting")
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def test_files_are_looked_at_when_the_channel_is_made() -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        Channel(f"127.0.0.1:{free_ports(1)[0]}", 1.0, Tls(ca="/nowhere/ca.pem"))
