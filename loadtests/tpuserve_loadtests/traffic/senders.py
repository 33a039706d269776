"""Senders of encoded predictions over gRPC or HTTP, for any number of concurrent greenlets.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, Protocol
from urllib.parse import urlsplit

from geventhttpclient import HTTPClient

from tpuserve_client.address import parse_address
from tpuserve_client.exchange import Reply
from tpuserve_client.model import Signature
from tpuserve_client.oip_rest_wire import HEADER_LENGTH
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.answers import WrongAnswer
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.protocols import port_of
from tpuserve_loadtests.requests.wires import WIRES, encode_golden, predict_call
from tpuserve_loadtests.requests.workload import Line
from tpuserve_loadtests.traffic.channel import Channel
from tpuserve_loadtests.traffic.connection import GrpcError
from tpuserve_loadtests.traffic.target import Target

MAX_MESSAGE: Final = 300
_OK: Final = 200
_HTTP_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class Sender(Protocol):
    line: Line

    def send(self, number: int) -> Reply:
        """Send one of the line's requests and return the response. `number` counts from 0 and wraps around.

        The sender does not decode the response, so that decoding does not add to the latency. Raises the request's
        error.
        """


class HttpError(Exception):
    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {_reason(body)}")


class GrpcSender:
    def __init__(self, line: Line, channel: Channel) -> None:
        self.line = line
        self._call = channel.call
        self._path = line.exchanges[0].path
        self._bodies = tuple(exchange.body for exchange in line.exchanges)

    def send(self, number: int) -> Reply:
        """Send a request. Raises GrpcError."""
        return Reply(self._call(self._path, self._bodies[number % len(self._bodies)]))


class HttpSender:
    def __init__(self, line: Line, client: HTTPClient, base_path: str) -> None:
        """Set up the sender. `base_path` is the path of the address, for instance behind a gateway."""
        self.line = line
        self._client = client
        self._path = base_path + line.exchanges[0].path
        self._requests = tuple((exchange.body, {**_HTTP_HEADERS, **exchange.headers}) for exchange in line.exchanges)

    def send(self, number: int) -> Reply:
        """Send a request. Raises HttpError, or the connection's error."""
        response = self._client.request("POST", self._path, *self._requests[number % len(self._requests)])
        body = bytes(response.read())  # the connection is reusable only after the whole body is read
        if response.status_code != _OK:
            raise HttpError(response.status_code, body)
        # The only header that a wire needs to read a prediction.
        length = response.get(HEADER_LENGTH)
        return Reply(body) if length is None else Reply(body, {HEADER_LENGTH: str(length)})


class Connections:
    """Connections to one server for all lines: a gRPC channel, and a REST connection for each request in flight.

    They open with the first requests, and stay open until `close`.
    """

    def __init__(
        self, addresses: Mapping[protocols.Protocol, str], access: Access, connections: int, timeout_s: float
    ) -> None:
        """Set up `addresses` by protocol. `connections` limits requests in flight over REST. Raises InvalidArgument."""
        self._channel: Channel | None = None
        self._client: HTTPClient | None = None
        for protocol, address in addresses.items():
            place = parse_address(address)
            if port_of(protocol) == "grpc":
                self._channel = Channel(place.target, timeout_s, access.tls_of(address), access.headers_of(address))
            else:
                self._client = access.http_client(place.target, connections, timeout_s)
                self._base_path = urlsplit(place.target).path

    def sender(self, line: Line) -> Sender:
        if port_of(line.protocol) == "grpc":
            assert self._channel is not None  # there is an address for each line
            return GrpcSender(line, self._channel)
        return HttpSender(line, self._client, self._base_path)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._client is not None:
            self._client.close()


def failure_message(error: Exception) -> str:
    if isinstance(error, HttpError | GrpcError | WrongAnswer):
        return str(error)[:MAX_MESSAGE]
    return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]


def _reason(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


class NotRecorded(RuntimeError):
    """Error for a request that failed, or whose response could not be decoded, without any other load."""


def record_golden(target: Target, signatures: Mapping[str, Signature], on_response: Callable[[], None]) -> Target:
    """Return the target with golden answers for its requests. `signatures` are by line name.

    Calls `on_response` after each request. Blocks. Raises NotRecorded.
    """
    with closing(Connections(target.addresses, target.access, 1, target.timeout_s)) as connections:
        lines = [
            replace(line, golden=_answers(connections.sender(line), signatures[line.name], on_response))
            for line in target.workload.lines
        ]
    return replace(target, workload=replace(target.workload, lines=tuple(lines)))


def _answers(sender: Sender, signature: Signature, on_response: Callable[[], None]) -> tuple[bytes, ...]:
    answers = []
    line = sender.line
    for number in range(len(line.exchanges)):
        try:
            answers.append(_golden(line, signature, sender.send(number)))
        except Exception as error:  # a request that fails alone also fails under load
            raise NotRecorded(
                f"{line.name}, request {number + 1} of {len(line.exchanges)}: {failure_message(error)}"
            ) from None
        on_response()
    return tuple(answers)


def _golden(line: Line, signature: Signature, reply: Reply) -> bytes:
    """Return PredictResponses unchanged, so that checks recognize an identical response without decoding."""
    call = predict_call(line.protocol, line.spec, {}, line.signature_name)
    prediction = WIRES[line.protocol].read_prediction(reply, call, signature)
    return reply.body if line.protocol == "grpc" else encode_golden(prediction.outputs)
