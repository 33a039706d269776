"""The two clients: `Client` blocks, `AsyncClient` awaits; everything else about them is the same."""

import asyncio
import enum
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import numpy.typing as npt

from tpuserve_client.address import Address, parse_address
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.exchange import AsyncTransport, Priority, Reply, Transport, Wire
from tpuserve_client.model import Metadata, ModelSpec, Prediction, VersionStatus
from tpuserve_client.operations import Operations, Pause, Send, Steps
from tpuserve_client.request_headers import read_headers
from tpuserve_client.retry import Retry
from tpuserve_client.tls import Tls

T = TypeVar("T")
Inputs: TypeAlias = Mapping[str, npt.ArrayLike] | npt.ArrayLike

DEFAULT_TIMEOUT_S = 30.0


class _Own(enum.Enum):
    """Stands for the client's own timeout where a call brings none: None already means "no deadline"."""

    TIMEOUT = enum.auto()


Timeout: TypeAlias = float | _Own | None


class Client:
    """A blocking client of one server. Safe to share between threads; close it, or use it in a `with` statement.

    `address` is `host:port`, `grpc://host:port` or `unix:/path` for gRPC, `http://host:port` for REST; `grpcs://` and
    `https://` with TLS, which `tls` says more about. `headers` go with every request, as gRPC's metadata or HTTP's
    headers. Nothing is sent before the first call. `timeout_s` is the deadline of calls that bring none of their own
    (None: no deadline). It spans all attempts and the pauses between them. `sleep`, `clock` (monotonic seconds) and
    `jitter` (evenly from [0, 1)) are what time is made of, for tests to replace. InvalidArgument for an address that is
    none, for certificates that cannot be read or used, and for headers that cannot be sent.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  frozen
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        place = parse_address(address)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._transport = _transport(place, _tls(place, tls), read_headers(headers or {}))
        self._operations = Operations(_wire(place), retry, clock, jitter)

    def predict(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        output_filter: Sequence[str] = (),
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Prediction:
        """Run a model on `inputs`: arrays by name, or one array for a model with a single input.

        Arrays go with the dtype they have; lists and numbers take the input's dtype from the model's metadata, which
        is fetched once and remembered, as is the name of a single input. `output_filter` names the outputs wanted;
        none means all. With `priority` "low" the server runs it where requests of high priority, which all others are,
        leave room. Raises TpuserveError: what the server refused, or InvalidArgument for what is no tensor.
        """
        spec = ModelSpec(model, version, label)
        return self._run(
            self._operations.predict(
                spec, inputs, signature_name, tuple(output_filter), priority, self._limit(timeout_s)
            )
        )

    def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Metadata:
        """Ask the server for the model's signatures: names, dtypes and shapes of inputs and outputs.

        `with_labels` asks for the names of its classes too. TensorFlow Serving refuses that over gRPC: InvalidArgument.
        """
        spec = ModelSpec(model, version, label)
        return self._run(self._operations.metadata(spec, self._limit(timeout_s), with_labels=with_labels))

    def status(
        self, model: str, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> tuple[VersionStatus, ...]:
        """The state of each version (or of one), newest first. NotFound for a model that the server does not know."""
        return self._run(self._operations.status(ModelSpec(model, version), self._limit(timeout_s)))

    def is_ready(
        self, model: str | None = None, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> bool:
        """Whether the server (or the model, if one is named) answers predictions now; False if it cannot be reached.

        Without a model this asks grpc.health.v1 or /readyz. A stock TensorFlow Serving has neither unless told to:
        Unimplemented or NotFound; name a model there.
        """
        spec = None if model is None else ModelSpec(model, version)
        return self._run(self._operations.is_ready(spec, self._limit(timeout_s)))

    def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """Block until `is_ready`. DeadlineExceeded, with the last reason, after `timeout_s` seconds."""
        spec = None if model is None else ModelSpec(model, version)
        self._run(self._operations.wait_until_ready(spec, timeout_s))

    def close(self) -> None:
        """Close the connections. Calls after this raise FailedPrecondition."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _limit(self, timeout_s: Timeout) -> float | None:
        return self._timeout_s if isinstance(timeout_s, _Own) else timeout_s

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    reply = self._carry_out(step)
                except TpuserveError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def _carry_out(self, step: Send | Pause) -> Reply | None:
        if isinstance(step, Send):
            return self._transport.send(step.exchange, step.timeout_s)
        self._sleep(step.seconds)
        return None


class AsyncClient:
    """`Client` for asyncio: the same calls, awaited. Make and use it on one running event loop.

    Close it with `await client.close()`, or use it in an `async with` statement. Cancelling a call cancels its request.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        place = parse_address(address)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._transport = _async_transport(place, _tls(place, tls), read_headers(headers or {}))
        self._operations = Operations(_wire(place), retry, clock, jitter)

    async def predict(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        output_filter: Sequence[str] = (),
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Prediction:
        """As `Client.predict`."""
        spec = ModelSpec(model, version, label)
        return await self._run(
            self._operations.predict(
                spec, inputs, signature_name, tuple(output_filter), priority, self._limit(timeout_s)
            )
        )

    async def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Metadata:
        """As `Client.metadata`."""
        spec = ModelSpec(model, version, label)
        return await self._run(self._operations.metadata(spec, self._limit(timeout_s), with_labels=with_labels))

    async def status(
        self, model: str, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> tuple[VersionStatus, ...]:
        """As `Client.status`."""
        return await self._run(self._operations.status(ModelSpec(model, version), self._limit(timeout_s)))

    async def is_ready(
        self, model: str | None = None, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> bool:
        """As `Client.is_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        return await self._run(self._operations.is_ready(spec, self._limit(timeout_s)))

    async def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """As `Client.wait_until_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        await self._run(self._operations.wait_until_ready(spec, timeout_s))

    async def close(self) -> None:
        """Close the connections. Calls after this raise FailedPrecondition."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _limit(self, timeout_s: Timeout) -> float | None:
        return self._timeout_s if isinstance(timeout_s, _Own) else timeout_s

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self._carry_out(step)
                except TpuserveError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _carry_out(self, step: Send | Pause) -> Reply | None:
        if isinstance(step, Send):
            return await self._transport.send(step.exchange, step.timeout_s)
        await self._sleep(step.seconds)
        return None


# grpc and httpx each cost a tenth to a quarter of a second to import: only the one that is used is paid for.


def _wire(place: Address) -> Wire:
    if place.is_rest:
        from tpuserve_client.rest_wire import RestWire

        return RestWire()
    from tpuserve_client.grpc_wire import GrpcWire

    return GrpcWire()


def _tls(place: Address, tls: Tls | None) -> Tls | None:
    if tls is not None and not place.is_secure:
        raise InvalidArgument(f"{place.target} is an address without TLS: grpcs:// and https:// have it.")
    return (tls or Tls()) if place.is_secure else None


def _transport(place: Address, tls: Tls | None, headers: Mapping[str, str]) -> Transport:
    if place.is_rest:
        from tpuserve_client.rest_transport import RestTransport

        return RestTransport(place.target, tls, headers)
    from tpuserve_client.grpc_transport import GrpcTransport

    return GrpcTransport(place.target, tls, headers)


def _async_transport(place: Address, tls: Tls | None, headers: Mapping[str, str]) -> AsyncTransport:
    if place.is_rest:
        from tpuserve_client.rest_transport import AsyncRestTransport

        return AsyncRestTransport(place.target, tls, headers)
    from tpuserve_client.grpc_transport import AsyncGrpcTransport

    return AsyncGrpcTransport(place.target, tls, headers)
