"""A receiver of OTLP traces on a free loopback port, over HTTP or gRPC, that keeps the spans that it receives."""

import contextlib
import gzip
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.certificates import ServerTls

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_WAIT_S = 60.0


@dataclass
class Receiver:
    """The received requests. `status` is the HTTP status of the responses.

    `refusals` are the HTTP statuses, or the codes of gRPC, of the first responses. They have `refusal_headers`, which
    gRPC sends as trailers. `reply` is the body of the others.
    """

    url: str = ""
    status: int = 200
    refusals: deque[int | grpc.StatusCode] = field(default_factory=deque)
    refusal_headers: dict[str, str | bytes] = field(default_factory=dict)
    reply: ExportTraceServiceResponse = field(default_factory=ExportTraceServiceResponse)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        """Keep a request."""
        with self._changed:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
            self.headers.append(headers)
            self._changed.notify_all()

    def spans(self) -> list[Span]:
        """Return all spans."""
        return [
            span
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for(self, is_enough: Callable[[Sequence[Span]], bool]) -> list[Span]:
        """Wait until the received spans are enough, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_enough(self.spans()), _WAIT_S), self.spans()
        return self.spans()


@contextlib.contextmanager
def http_receiver(status: int = 200, tls: ServerTls | None = None) -> Iterator[Receiver]:
    """Run a receiver of OTLP over HTTP or HTTPS, with the name localhost."""
    receiver = Receiver(status=status)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.take(
                gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body,
                {**headers, ":path": self.path},
            )
            if receiver.refusals:
                self._answer(cast("int", receiver.refusals.popleft()), receiver.refusal_headers, b"")
            else:
                reply = receiver.reply.SerializeToString()
                self._answer(receiver.status, {"content-type": "application/x-protobuf"}, reply)

        def _answer(self, status: int, headers: Mapping[str, str | bytes], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers["content-length"]))

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        if tls is not None:
            server.socket = _context(tls).wrap_socket(server.socket, server_side=True)
            receiver.url = f"https://localhost:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _context(tls: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.own.cert, tls.own.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def grpc_receiver(tls: ServerTls | None = None) -> Iterator[Receiver]:
    """Run a receiver of OTLP over gRPC, with the address 127.0.0.1."""
    receiver = Receiver()

    def export(body: bytes, context: grpc.ServicerContext) -> bytes:
        receiver.take(body, {key: str(value) for key, value in context.invocation_metadata() or ()})
        if receiver.refusals:
            context.set_trailing_metadata(tuple(receiver.refusal_headers.items()))
            context.abort(cast("grpc.StatusCode", receiver.refusals.popleft()), "later")
        return receiver.reply.SerializeToString()

    server = grpc.server(ThreadPoolExecutor(2))
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    handlers = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    if tls is None:
        receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        receiver.url = f"https://127.0.0.1:{server.add_secure_port('127.0.0.1:0', tls.credentials())}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def attributes_of(pairs: Sequence[KeyValue]) -> dict[str, object]:
    """Return attributes by name."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}
