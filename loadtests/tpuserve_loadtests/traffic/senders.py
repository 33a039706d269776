"""What sends one predict request and waits for its answer, over gRPC or REST, from any number of greenlets at once.

Importing this needs a process that was handed to gevent: see gevent_setup.
"""

import json
from itertools import count, cycle
from typing import Final, Protocol

import grpc
from geventhttpclient import HTTPClient

from tpuserve_client.address import parse_address
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.workload import Workload

# Reading every answer would cost the generator more than sending the request did.
CHECK_EVERY: Final = 256
MAX_MESSAGE: Final = 300
_OK: Final = 200
_REST_HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class Sender(Protocol):
    """Sends the requests of a workload in turn. `protocol` names it in tables."""

    protocol: str

    def send(self) -> int:
        """Wait for the answer to the next request; its length in bytes. Raises whatever went wrong."""

    def close(self) -> None: ...


class HttpError(Exception):
    """An answer with a status other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}: {_reason(body)}")


class GrpcSender:
    """One channel for all greenlets. An answer that was sampled (the first and every 256th) must be readable, too."""

    protocol = "grpc"

    def __init__(self, address: str, exchanges: tuple[Exchange, ...], spec: ModelSpec, timeout_s: float) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(parse_address(address).target, options=options)
        self._call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(exchanges[0].path)
        self._bodies = cycle([exchange.body for exchange in exchanges])
        self._numbers = count()
        self._question = PredictCall(spec, {})
        self._timeout_s = timeout_s

    def send(self) -> int:
        """Any status but OK is an error."""
        answer = self._call(next(self._bodies), timeout=self._timeout_s)
        if next(self._numbers) % CHECK_EVERY == 0:
            GrpcWire().read_prediction(Reply(answer), self._question, None)
        return len(answer)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class RestSender:
    """A connection for each request in flight, kept for the next ones. Any status but 200 is an error."""

    protocol = "rest"

    def __init__(self, url: str, exchanges: tuple[Exchange, ...], connections: int, timeout_s: float) -> None:
        self._client = HTTPClient.from_url(
            parse_address(url).target, concurrency=connections, connection_timeout=timeout_s, network_timeout=timeout_s
        )
        self._path = exchanges[0].path
        self._bodies = cycle([exchange.body for exchange in exchanges])

    def send(self) -> int:
        """Raises HttpError, or what the connection raised."""
        response = self._client.request("POST", self._path, next(self._bodies), _REST_HEADERS)
        body = bytes(response.read())  # to its end: only then does the connection go back
        if response.status_code != _OK:
            raise HttpError(response.status_code, body)
        return len(body)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


def senders(workload: Workload, addresses: dict[str, str], connections: int, timeout_s: float) -> tuple[Sender, ...]:
    """One for each protocol of the workload, in its order; `connections` bounds requests in flight over REST."""
    made: list[Sender] = []
    for protocol, exchanges in workload.exchanges.items():
        address = addresses[protocol]
        if protocol == "grpc":
            made.append(GrpcSender(address, exchanges, workload.spec, timeout_s))
        else:
            made.append(RestSender(address, exchanges, connections, timeout_s))
    return tuple(made)


def failure_message(error: Exception) -> str:
    """Why a request failed, as one short line."""
    if isinstance(error, HttpError):
        return str(error)[:MAX_MESSAGE]
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"[:MAX_MESSAGE]
    return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]


def _reason(body: bytes) -> str:
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
