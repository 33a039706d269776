"""Proxies between a rollout and real servers, which route, delay or spoil requests."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc


def _same(message: bytes) -> bytes:
    return message


class GrpcProxy(grpc.GenericRpcHandler):
    """A gRPC proxy that sends each request to the address that `route` returns for it. `route` may block."""

    def __init__(self, route: Callable[[bytes], str]) -> None:
        self._route = route
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def service(self, call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = call_details.method

        def forward(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                call = self._channel(self._route(request)).unary_unary(method, _same, _same)
                return call(request, timeout=context.time_remaining())
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")
                raise

        return grpc.unary_unary_rpc_method_handler(forward)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address)
            return self._channels[address]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on a free port of 127.0.0.1, and yield the address."""
        with ThreadPoolExecutor(16, "proxy") as pool:
            server = grpc.server(pool, [self])
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                server.stop(None).wait()
                for channel in self._channels.values():
                    channel.close()


@contextmanager
def spoiling_rest(url: str, path: str, from_in_flight: int = 1) -> Iterator[str]:
    """Proxy a REST server, and yield the URL.

    Responses of paths that contain `path` are wrong while at least `from_in_flight` requests for them are in flight.
    """
    lock = threading.Lock()
    in_flight = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(*self._ask(None))

        def do_POST(self) -> None:
            nonlocal in_flight
            body = self.rfile.read(int(self.headers["content-length"]))
            is_spoiled = path in self.path
            with lock:
                in_flight += is_spoiled
                is_wrong = is_spoiled and in_flight >= from_in_flight
            answer, status = self._ask(body)
            with lock:
                in_flight -= is_spoiled
            if is_wrong:
                document: dict[str, Any] = json.loads(answer)
                answer = json.dumps({key: [[9.0] * 4] * len(rows) for key, rows in document.items()}).encode()
            self._reply(answer, status)

        def _ask(self, body: bytes | None) -> tuple[bytes, int]:
            try:
                response = urllib.request.urlopen(urllib.request.Request(url + self.path, body), timeout=60)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                return bytes(response.read()), response.status

        def _reply(self, body: bytes, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="proxy")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
