"""Senders of encoded predictions over gRPC or HTTP, for any number of concurrent greenlets.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import gevent
from gevent import socket
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketPoolResponse

from tpuserve_client.address import parse_address
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Code, DeadlineExceeded, Unavailable, from_code, from_http
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.oip_rest_wire import HEADER_LENGTH
from tpuserve_client.rest_transport import TIMEOUT_HEADER
from tpuserve_client.rest_wire import VERSION_HEADER
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.answers import CheckPlan
from tpuserve_loadtests.golden.difference import find_difference
from tpuserve_loadtests.golden.form import WrongAnswer
from tpuserve_loadtests.golden.tolerance import ANY_PRECISION, Tolerance
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.openai import BadStream, read_completion
from tpuserve_loadtests.requests.protocols import GRPC_CONNECTIONS, port_of
from tpuserve_loadtests.requests.wires import WIRES, encode_golden, predict_call
from tpuserve_loadtests.requests.workload import Line
from tpuserve_loadtests.traffic.channel import Channel
from tpuserve_loadtests.traffic.connection import GrpcError
from tpuserve_loadtests.traffic.target import Target

MAX_MESSAGE: Final = 300
# Requests in flight use memory. Beyond this limit, arrivals are dropped and counted.
MAX_IN_FLIGHT: Final = 10_000
_OPEN_S: Final = 1.0
# Limits of the golden answers that a load test records by default, and the number of requests that it sends twice.
_SOME_S: Final = 2.0
_SOME_REQUESTS: Final = 64
_SOME_BYTES: Final = 32 * 2**20
_REPEATED: Final = 3
_OK: Final = 200
_HTTP_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class Sender(Protocol):
    line: Line

    def send(self, number: int, delivery: Delivery) -> Reply:
        """Send one of the line's requests and return the response. `number` counts from 0 and wraps around.

        The sender fills in `delivery`. It does not decode the response, so that decoding does not add to the latency.
        Raises the request's error.
        """


class HttpError(Exception):
    """Error for every HTTP status except 200. `reason` is the server's message, which may be empty."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.reason = status, _reason(body)
        super().__init__(f"HTTP {status}: {self.reason}" if self.reason else f"HTTP {status}")


class GrpcSender:
    """Sender over channels that take turns. Each has the replica's address, or "" if there is a single one."""

    def __init__(self, line: Line, channels: Iterable[tuple[str, Channel]]) -> None:
        self.line = line
        self._turns = itertools.cycle([(address, channel.call) for address, channel in channels])
        self._path = line.exchanges[0].path
        self._bodies = tuple(exchange.body for exchange in line.exchanges)

    def send(self, number: int, delivery: Delivery) -> Reply:
        """Send a request. Raises GrpcError."""
        delivery.address, call = next(self._turns)
        return Reply(call(self._path, self._bodies[number % len(self._bodies)], delivery=delivery))


class HttpSender:
    """Sender over clients that take turns, as those of GrpcSender."""

    def __init__(self, line: Line, clients: Iterable[tuple[str, HTTPClient]], base_path: str) -> None:
        """Set up the sender. `base_path` is the path of the address, for instance behind a gateway."""
        self.line = line
        self._turns = itertools.cycle(clients)
        self._path = base_path + line.exchanges[0].path
        self._requests = tuple((exchange.body, {**_HTTP_HEADERS, **exchange.headers}) for exchange in line.exchanges)

    def send(self, number: int, delivery: Delivery) -> Reply:
        """Send a request. Raises HttpError, or the connection's error."""
        return _replied(self._respond(number, delivery))

    def _respond(self, number: int, delivery: Delivery) -> HTTPSocketPoolResponse:
        delivery.address, client = next(self._turns)
        return client.request("POST", self._path, *self._requests[number % len(self._requests)])


class ChatSender(HttpSender):
    """Sender of chat completions, which reads their streams."""

    def send(self, number: int, delivery: Delivery) -> Reply:
        """Send a request, and return its text. Raises HttpError, WrongAnswer, or the connection's error."""
        response = self._respond(number, delivery)
        if response.status_code != _OK:
            raise HttpError(response.status_code, bytes(response.read()))
        try:
            completion = read_completion(response, time.perf_counter)
        except BadStream as error:
            raise WrongAnswer(str(error)) from None
        delivery.tokens_s = completion.tokens_s
        return Reply(completion.body)


def _replied(response: HTTPSocketPoolResponse) -> Reply:
    """Return the reply after its whole body is read, because the connection is reusable only then. Raises HttpError."""
    body = bytes(response.read())
    if response.status_code != _OK:
        raise HttpError(response.status_code, body)
    # The only headers that a wire needs to read a prediction.
    found = ((name, response.get(name)) for name in (HEADER_LENGTH, VERSION_HEADER))
    return Reply(body, {name: str(value) for name, value in found if value is not None})


class GrpcTransport:
    """The client's transport over channels that take turns."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._turns = itertools.cycle(channels)

    def send(self, exchange: Exchange, timeout_s: float | None, delivery: Delivery | None = None) -> Reply:
        """Send an exchange, within the channel's timeout if `timeout_s` is None. Raises TpuserveError."""
        # Milliseconds are gRPC's unit, and equal timeouts share the encoded headers.
        limit_s = math.inf if timeout_s is None else round(timeout_s, 3)
        try:
            call = next(self._turns).call
            return Reply(call(exchange.path, exchange.body, exchange.headers, limit_s, delivery))
        except GrpcError as error:
            raise from_code(Code[error.code], error.details) from None


class HttpTransport:
    """The client's transport over the connections of HTTP clients that take turns."""

    def __init__(self, clients: Sequence[HTTPClient], base_path: str) -> None:
        self._turns = itertools.cycle(clients)
        self._base_path = base_path

    def send(self, exchange: Exchange, timeout_s: float | None, delivery: Delivery | None = None) -> Reply:
        """Send an exchange, within the client's timeout if `timeout_s` is None. Raises TpuserveError."""
        headers = {**_HTTP_HEADERS, **exchange.headers}
        if timeout_s is not None:
            headers[TIMEOUT_HEADER] = f"{max(timeout_s, 0) * 1000:.3f}"
        try:
            with gevent.Timeout(timeout_s, TimeoutError()):
                client = next(self._turns)
                return _replied(
                    client.request(exchange.method, self._base_path + exchange.path, exchange.body, headers)
                )
        except HttpError as error:
            raise from_http(error.status, error.reason) from None
        except TimeoutError:
            raise DeadlineExceeded("no response before the deadline") from None
        except (OSError, HTTPParseError) as error:
            raise Unavailable(failure_message(error), may_have_run=True) from None


class Connections:
    """Connections for all lines, spread evenly over the replicas of each address.

    REST connections open with the first requests, and all stay open until `close`.
    """

    def __init__(
        self,
        addresses: Mapping[protocols.Protocol, str],
        access: Access,
        timeout_s: float,
        connections: int | None = None,
        replicas: Sequence[str] = (),
    ) -> None:
        """Set up `addresses` by protocol.

        `connections` is the number over gRPC and the limit over REST, of which each replica has at least one. By
        default, gRPC has GRPC_CONNECTIONS, and REST one for each request in flight. Requests go to the `replicas` of
        their port in turn, or to the IP addresses of their address if there are none. Raises InvalidArgument.
        """
        self._channels: dict[protocols.Protocol, list[tuple[str, Channel]]] = {}
        self._clients: dict[protocols.Protocol, list[tuple[str, HTTPClient]]] = {}
        for protocol, address in addresses.items():
            own = [each for each in replicas if port_of(protocols.protocol_of(each)) == port_of(protocol)]
            places = _places(own or [address])
            if port_of(protocol) == "grpc":
                self._channels[protocol] = [
                    (
                        shown,
                        Channel(
                            parse_address(each).target, timeout_s, access.tls_of(each), access.headers_of(each), ip
                        ),
                    )
                    for _ in range(math.ceil((connections or GRPC_CONNECTIONS) / len(places)))
                    for shown, each, ip in places
                ]
            else:
                self._base_path = urlsplit(parse_address(places[0][1]).target).path
                limit = math.ceil((connections or MAX_IN_FLIGHT) / len(places))
                self._clients[protocol] = [
                    (shown, access.http_client(parse_address(each).target, limit, timeout_s, ip))
                    for shown, each, ip in places
                ]

    def open(self) -> None:
        """Open the gRPC connections, so that no request waits for them. Block for at most a second."""
        channels = [channel for own in self._channels.values() for _, channel in own]
        gevent.joinall([gevent.spawn(channel.open) for channel in channels], timeout=_OPEN_S)

    def sender(self, line: Line) -> Sender:
        if port_of(line.protocol) == "grpc":
            return GrpcSender(line, self._channels[line.protocol])
        kind = ChatSender if line.protocol == "openai" else HttpSender
        return kind(line, self._clients[line.protocol], self._base_path)

    def transport(self, protocol: protocols.Protocol) -> GrpcTransport | HttpTransport:
        """Return a transport of the Python client for a protocol that has an address."""
        if port_of(protocol) == "grpc":
            return GrpcTransport([channel for _, channel in self._channels[protocol]])
        return HttpTransport([client for _, client in self._clients[protocol]], self._base_path)

    def close(self) -> None:
        for own in (*self._channels.values(), *self._clients.values()):
            for _, each in own:
                each.close()


def _places(addresses: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return for each replica the text to show, the address and the IP address, empty if there is nothing to choose.

    A single address has a replica for each IP address of its name.
    """
    if len(addresses) > 1:
        return [(address, address, "") for address in addresses]
    target = parse_address(addresses[0]).target
    host = urlsplit(target if "://" in target else f"//{target}").hostname
    found: list[Any] = []  # socket's tuples
    if host and not target.startswith("unix:"):
        with suppress(OSError):  # the first request reports it
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    ips = list(dict.fromkeys(each[4][0] for each in found if each[0] == found[0][0]))
    return [(ip, addresses[0], ip) for ip in ips] if len(ips) > 1 else [("", addresses[0], "")]


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


def record(
    target: Target, plan: CheckPlan, on_response: Callable[[], None] | None = None, *, repeated: int = _REPEATED
) -> tuple[Target, CheckPlan, list[str]]:
    """Return the target with golden answers for its requests, the plan with their versions, and notes.

    Sends the first `repeated` requests twice. A line gets no answers if the model answers the same request differently.
    With `on_response`, records all requests, calls it after each, and raises NotRecorded. Without it, records some
    requests of the lines without golden answers until one fails, and blocks for a few seconds at most.
    """
    lines: list[Line] = []
    versions: dict[str, int] = {}
    notes: list[str] = []
    some_s = min(target.timeout_s, _SOME_S)
    timeout_s = target.timeout_s if on_response else some_s
    with closing(Connections(target.addresses, target.access, timeout_s, 1)) as connections:
        for line in target.workload.lines:
            recorded: dict[int, _Golden] = {}
            # The text of a language model depends on the batch.
            if on_response or (not line.golden and line.protocol != "openai"):
                try:
                    sender = connections.sender(line)
                    _record(sender, on_response, some_s / len(target.workload.lines), repeated, recorded)
                except NotRecorded:
                    if on_response:
                        raise
                    # The load reports such failures.
                except _Differs:
                    recorded.clear()
                    notes.append(
                        f"{line.name}: The model answers the same request differently. Values are not compared."
                    )
            lines.append(_with_golden(line, recorded, versions) if recorded else line)
    workload = replace(target.workload, lines=tuple(lines))
    return replace(target, workload=workload), replace(plan, versions=versions), notes


class _Differs(Exception):
    """Error for two different answers to the same request, one after the other."""


def _record(
    sender: Sender,
    on_response: Callable[[], None] | None,
    some_s: float,
    repeated: int,
    recorded: dict[int, "_Golden"],
) -> None:
    """Add golden answers, without `on_response` until a limit is reached. Raises NotRecorded and _Differs."""
    end_s, size_bytes = time.monotonic() + some_s, 0
    limit = Tolerance(versions=(ANY_PRECISION,))
    for number in _rare_first(sender.line.rows):
        golden = _golden(sender, number)
        if len(recorded) < repeated and find_difference(_golden(sender, number).outputs, golden.outputs, limit):
            raise _Differs
        recorded[number] = golden
        size_bytes += len(golden.encoded) + len(sender.line.exchanges[number].body)
        if on_response:
            on_response()
        elif time.monotonic() > end_s or size_bytes > _SOME_BYTES or len(recorded) == _SOME_REQUESTS:
            return


def _rare_first(rows: Sequence[int]) -> list[int]:
    """Return the numbers of all requests: in turn one of each number of rows, so that a limit omits none of them."""
    earlier: Counter[int] = Counter()
    turns = []
    for number, count in enumerate(rows):
        turns.append((earlier[count], number))
        earlier[count] += 1
    return [number for _, number in sorted(turns)]


class _Golden(NamedTuple):
    encoded: bytes
    outputs: Mapping[str, Array]
    version: int | None


def _golden(sender: Sender, number: int) -> _Golden:
    """Send a request, with no other in flight. Raises NotRecorded.

    A PredictResponse remains unchanged, so that checks recognize an identical response without decoding.
    """
    line = sender.line
    call = predict_call(line.protocol, line.spec, {}, line.signature.name)
    try:
        reply = sender.send(number, Delivery())
        prediction = WIRES[line.protocol].read_prediction(reply, call, line.signature)
    except Exception as error:  # a request that fails alone also fails under load
        raise NotRecorded(
            f"{line.name}, request {number + 1} of {len(line.exchanges)}: {failure_message(error)}"
        ) from None
    encoded = reply.body if line.protocol == "grpc" else encode_golden(prediction.outputs)
    return _Golden(encoded, prediction.outputs, prediction.version)


def _with_golden(line: Line, recorded: Mapping[int, _Golden], versions: dict[str, int]) -> Line:
    version = next(iter(recorded.values())).version
    if version is not None:
        versions[line.name] = version
    encoded = tuple(recorded[number].encoded if number in recorded else b"" for number in range(max(recorded) + 1))
    return replace(line, golden=encoded)
