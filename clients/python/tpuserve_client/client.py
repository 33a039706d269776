"""Blocking client `Client` and asyncio client `AsyncClient`, with the same calls."""

import asyncio
import enum
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import numpy.typing as npt

from tpuserve_client.address import Address, parse_address
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.examples import Example
from tpuserve_client.exchange import AsyncTransport, Priority, Reply, Transport, Wire, example_call
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, VersionStatus
from tpuserve_client.names import output_names
from tpuserve_client.operations import Operations, Pause, Send, Steps
from tpuserve_client.request_headers import read_headers
from tpuserve_client.retry import Retry
from tpuserve_client.row_parts import join_rows
from tpuserve_client.split_predict import SplitPredict, first_then_in_tasks, first_then_in_threads
from tpuserve_client.tls import Tls

T = TypeVar("T")
Inputs: TypeAlias = Mapping[str, npt.ArrayLike] | npt.ArrayLike

DEFAULT_TIMEOUT_S = 30.0


class _Own(enum.Enum):
    """Default of a call's timeout that selects the client's own timeout. None already means "no deadline"."""

    TIMEOUT = enum.auto()


Timeout: TypeAlias = float | _Own | None


class Client:
    """A blocking client of one server. Safe to share between threads; close it, or use it in a `with` statement.

    `address` is `host:port`, `grpc://host:port` or `unix:/path` for gRPC, or `http://host:port` for REST. `grpcs://`
    and `https://` use TLS, which `tls` configures. `headers` are sent with every request, as gRPC metadata or HTTP
    headers. The client connects at the first call.

    `timeout_s` is the default deadline of a call, in seconds (None: no deadline). It covers all attempts and the pauses
    between them. Tests replace `sleep`, `clock` (monotonic seconds) and `jitter` (uniform over [0, 1)).

    Raises InvalidArgument for an invalid address, for certificates that cannot be read or used, and for headers that
    cannot be sent.
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
        max_batch_size: int | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Prediction:
        """Run a model on `inputs`: arrays by name, or one array for a model with a single input.

        Arrays keep their dtype. Lists and numbers take the input's dtype from the model's metadata, which also names a
        single input. The client fetches the metadata once and caches it. `output_filter` is the output to return, or a
        sequence of outputs; an empty one returns all. The server runs a request with `priority` "low" only when
        requests of high priority (the default) leave room.

        With `max_batch_size`, the client divides inputs with more rows (the size of the first dimension) and joins the
        outputs. All parts go to one version, within one deadline: first one part, then up to four at a time. If a part
        fails, the call raises its error.

        Raises TpuserveError if the server refuses the request, and InvalidArgument for a value that no tensor can hold.
        With `max_batch_size` it raises InvalidArgument also for inputs and outputs without a common number of rows.
        """
        spec, names, limit_s = ModelSpec(model, version, label), output_names(output_filter), self._limit(timeout_s)
        if max_batch_size is not None:
            split = SplitPredict(self._operations, spec, signature_name, names, priority, max_batch_size, limit_s)
            return self._predict_parts(split, inputs)
        return self._run(self._operations.predict(spec, inputs, signature_name, names, priority, limit_s))

    def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Metadata:
        """Return the model's signatures: names, dtypes and shapes of inputs and outputs.

        `with_labels` also requests the names of the model's classes. TensorFlow Serving refuses that over gRPC with
        InvalidArgument.
        """
        spec = ModelSpec(model, version, label)
        return self._run(self._operations.metadata(spec, self._limit(timeout_s), with_labels=with_labels))

    def status(
        self, model: str, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> tuple[VersionStatus, ...]:
        """Return the state of each version (or of one), newest first. Raises NotFound for an unknown model."""
        return self._run(self._operations.status(ModelSpec(model, version), self._limit(timeout_s)))

    def is_ready(
        self, model: str | None = None, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> bool:
        """Return whether the server (or `model`) answers predictions now, and False if the server is unreachable.

        Without a model the client calls grpc.health.v1 or /readyz. TensorFlow Serving enables neither by default: the
        client raises Unimplemented or NotFound. Name a model for such a server.
        """
        spec = None if model is None else ModelSpec(model, version)
        return self._run(self._operations.is_ready(spec, self._limit(timeout_s)))

    def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """Block until `is_ready`. After `timeout_s` seconds, raise DeadlineExceeded with the last reason."""
        spec = None if model is None else ModelSpec(model, version)
        self._run(self._operations.wait_until_ready(spec, timeout_s))

    def close(self) -> None:
        """Close the connections. Later calls raise FailedPrecondition."""
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

    def classify(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Classifications:
        """Classify examples: mappings from feature name to a value or values. Return the classes of each example.

        Integers and bools become int64 features, other numbers float32, str and bytes bytes. The server merges the
        features of `context` into each example. A class is a tuple of label and score, in the model's order. Raises
        InvalidArgument for no example, for values that no feature can hold, and for a signature of another method.
        """
        call = example_call(ModelSpec(model, version, label), examples, context, signature_name, priority)
        return self._run(self._operations.classify(call, self._limit(timeout_s)))

    def regress(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Array:
        """Return the model's value for each example, a float32 array of shape [n]. Examples are as in `classify`."""
        call = example_call(ModelSpec(model, version, label), examples, context, signature_name, priority)
        return self._run(self._operations.regress(call, self._limit(timeout_s)))

    def _predict_parts(self, split: SplitPredict, inputs: Inputs) -> Prediction:
        parts = self._run(split.parts(inputs))
        return join_rows(first_then_in_threads(lambda part: self._run(split.predict(part)), parts))


class AsyncClient:
    """A client for asyncio with the calls of `Client`. Create it and use it on the same running event loop.

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
        max_batch_size: int | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Prediction:
        """Run a model. See `Client.predict`."""
        spec, names, limit_s = ModelSpec(model, version, label), output_names(output_filter), self._limit(timeout_s)
        if max_batch_size is not None:
            split = SplitPredict(self._operations, spec, signature_name, names, priority, max_batch_size, limit_s)
            return await self._predict_parts(split, inputs)
        return await self._run(self._operations.predict(spec, inputs, signature_name, names, priority, limit_s))

    async def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Metadata:
        """Return the model's signatures. See `Client.metadata`."""
        spec = ModelSpec(model, version, label)
        return await self._run(self._operations.metadata(spec, self._limit(timeout_s), with_labels=with_labels))

    async def status(
        self, model: str, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> tuple[VersionStatus, ...]:
        """Return the state of each version. See `Client.status`."""
        return await self._run(self._operations.status(ModelSpec(model, version), self._limit(timeout_s)))

    async def is_ready(
        self, model: str | None = None, *, version: int | None = None, timeout_s: Timeout = _Own.TIMEOUT
    ) -> bool:
        """Return whether the server or a model answers predictions now. See `Client.is_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        return await self._run(self._operations.is_ready(spec, self._limit(timeout_s)))

    async def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """Wait until `is_ready`. See `Client.wait_until_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        await self._run(self._operations.wait_until_ready(spec, timeout_s))

    async def close(self) -> None:
        """Close the connections. Later calls raise FailedPrecondition."""
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

    async def classify(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Classifications:
        """Classify examples. See `Client.classify`."""
        call = example_call(ModelSpec(model, version, label), examples, context, signature_name, priority)
        return await self._run(self._operations.classify(call, self._limit(timeout_s)))

    async def regress(
        self,
        model: str,
        examples: Sequence[Example],
        *,
        context: Example | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str | None = None,
        priority: Priority | None = None,
        timeout_s: Timeout = _Own.TIMEOUT,
    ) -> Array:
        """Return the model's value for each example. See `Client.regress`."""
        call = example_call(ModelSpec(model, version, label), examples, context, signature_name, priority)
        return await self._run(self._operations.regress(call, self._limit(timeout_s)))

    async def _predict_parts(self, split: SplitPredict, inputs: Inputs) -> Prediction:
        parts = await self._run(split.parts(inputs))
        return join_rows(await first_then_in_tasks(lambda part: self._run(split.predict(part)), parts))


# Import only the library in use: grpc and httpx each take 0.1 to 0.25 s to import.


def _wire(place: Address) -> Wire:
    if place.is_rest:
        from tpuserve_client.rest_wire import RestWire

        return RestWire()
    from tpuserve_client.grpc_wire import GrpcWire

    return GrpcWire()


def _tls(place: Address, tls: Tls | None) -> Tls | None:
    if tls is not None and not place.is_secure:
        raise InvalidArgument(f"{place.target} is an address without TLS. Use grpcs:// or https://.")
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
