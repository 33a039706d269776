"""Senders of Predict requests over gRPC or REST, for any number of concurrent greenlets.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import json
from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

from geventhttpclient import HTTPClient

from tpuserve_client.address import parse_address
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.answer_check import WrongAnswer
from tpuserve_loadtests.grpc_client.channel import Channel
from tpuserve_loadtests.grpc_client.status import GrpcError
from tpuserve_loadtests.workload import Line

MAX_MESSAGE: Final = 300
_OK: Final = 200
_REST_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class Sender(Protocol):
    """Sender for the requests of a line."""

    line: Line

    def send(self, number: int) -> bytes:
        """Send one of the line's requests and return the response. `number` counts from 0 and wraps around.

        The sender does not decode the response, so that decoding does not add to the latency. Raises the request's
        error.
        """


class HttpError(Exception):
    """Error for a response with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {_reason(body)}")


class GrpcSender:
    """Sender over gRPC. Every status except OK is an error."""

    def __init__(self, line: Line, channel: Channel) -> None:
        self.line = line
        self._call = channel.call
        self._path = line.exchanges[0].path
        self._bodies = tuple(exchange.body for exchange in line.exchanges)

    def send(self, number: int) -> bytes:
        """Send a request. Raises GrpcError."""
        return self._call(self._path, self._bodies[number % len(self._bodies)])


class RestSender:
    """Sender over REST. Every status except 200 is an error."""

    def __init__(self, line: Line, client: HTTPClient, base_path: str) -> None:
        """Set up the sender. `base_path` is the path of the address, for instance behind a gateway."""
        self.line = line
        self._client = client
        self._path = base_path + line.exchanges[0].path
        self._bodies = tuple(exchange.body for exchange in line.exchanges)

    def send(self, number: int) -> bytes:
        """Send a request. Raises HttpError, or the connection's error."""
        response = self._client.request("POST", self._path, self._bodies[number % len(self._bodies)], _REST_HEADERS)
        body = bytes(response.read())  # the connection is reusable only after the whole body is read
        if response.status_code != _OK:
            raise HttpError(response.status_code, body)
        return body


class Connections:
    """Connections to one server for all lines: a gRPC channel, and a REST connection for each request in flight.

    They open with the first requests, and stay open until `close`.
    """

    def __init__(self, addresses: Mapping[str, str], access: Access, connections: int, timeout_s: float) -> None:
        """Set up `addresses` by protocol. `connections` limits requests in flight over REST. Raises InvalidArgument."""
        if "grpc" in addresses:
            place = parse_address(addresses["grpc"])
            self._channel = Channel(place.target, timeout_s, access.tls_of(addresses["grpc"]), access.headers)
        if "rest" in addresses:
            url = parse_address(addresses["rest"]).target
            self._client = access.http_client(url, connections, timeout_s)
            self._base_path = urlsplit(url).path
        self._protocols = tuple(addresses)

    def sender(self, line: Line) -> Sender:
        """Return a sender for a line's requests."""
        if line.protocol == "grpc":
            return GrpcSender(line, self._channel)
        return RestSender(line, self._client, self._base_path)

    def close(self) -> None:
        """Close all connections."""
        if "grpc" in self._protocols:
            self._channel.close()
        if "rest" in self._protocols:
            self._client.close()


def failure_message(error: Exception) -> str:
    """Return the reason why a request failed, in one short line."""
    if isinstance(error, HttpError | GrpcError | WrongAnswer):
        return str(error)[:MAX_MESSAGE]
    return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]


def _reason(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
