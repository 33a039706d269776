"""The client's operations as steps without input or output, shared by the blocking and the asyncio client.

Each operation is a generator. It yields a `Send` and receives the reply or the error, or yields a `Pause` and continues
after it. The two drivers in `client.py` execute the steps. Retries, deadlines and the signature cache are implemented
only here.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from tpuserve_client.casting import named_arrays, needs_signature
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    TpuserveError,
    Unavailable,
)
from tpuserve_client.exchange import ExampleCall, Exchange, PredictCall, Priority, Reply, Wire
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, Signature, State, VersionStatus
from tpuserve_client.retry import Retry

# Timeout of one readiness probe, and the longest pause before the next probe.
_PROBE_TIMEOUT_S = 5.0
_LONGEST_PROBE_PAUSE_S = 1.0
_NO_RESPONSE = "no response"


@dataclass(frozen=True, slots=True)
class Send:
    """Step: send this exchange within `timeout_s` seconds (None: no limit), and pass its reply to the generator."""

    exchange: Exchange
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: resume the generator after this many seconds."""

    seconds: float


T = TypeVar("T")
Step: TypeAlias = Send | Pause
Steps: TypeAlias = Generator[Step, Reply | None, T]


class Operations:
    """The steps of each operation over one wire.

    Safe to share between threads: the cache is a dict whose entries are replaced as a whole. At worst, two threads
    fetch the same metadata twice. `clock` returns monotonic seconds, and `jitter` draws uniformly from [0, 1).
    """

    def __init__(self, wire: Wire, retry: Retry, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._wire = wire
        self._retry = retry
        self._clock = clock
        self._jitter = jitter
        self._metadata: dict[ModelSpec, Metadata] = {}

    def predict(
        self,
        spec: ModelSpec,
        inputs: object,
        signature_name: str | None,
        output_filter: tuple[str, ...],
        priority: Priority | None,
        timeout_s: float | None,
    ) -> Steps[Prediction]:
        expires = self._expires(timeout_s)
        try:
            signature = None
            if needs_signature(inputs):
                signature = yield from self._signature(spec, signature_name, expires)
            arrays = named_arrays(inputs, spec, signature)
            call = PredictCall(spec, arrays, signature_name, output_filter, priority)
            reply = yield from self._send(self._wire.predict(call), expires)
        except (NotFound, InvalidArgument, FailedPrecondition):
            self._metadata.pop(spec, None)  # the cached metadata may belong to an unloaded version
            raise
        return (yield from self._read_prediction(reply, call, expires))

    def metadata(self, spec: ModelSpec, timeout_s: float | None, *, with_labels: bool = False) -> Steps[Metadata]:
        return (yield from self._fetch_metadata(spec, self._expires(timeout_s), with_labels=with_labels))

    def status(self, spec: ModelSpec, timeout_s: float | None) -> Steps[tuple[VersionStatus, ...]]:
        reply = yield from self._send(self._wire.status(spec), self._expires(timeout_s))
        return self._wire.read_status(reply)

    def is_ready(self, spec: ModelSpec | None, timeout_s: float | None) -> Steps[bool]:
        reason = yield from self._obstacle(spec, timeout_s)
        return reason is None

    def wait_until_ready(self, spec: ModelSpec | None, timeout_s: float) -> Steps[None]:
        expires = self._clock() + timeout_s
        reason = "the client sent no request"
        attempt = 0
        while (remaining := expires - self._clock()) > 0:
            attempt += 1
            obstacle = yield from self._obstacle(spec, min(remaining, _PROBE_TIMEOUT_S))
            if obstacle is None:
                return
            # A probe that the caller's deadline cuts short proves nothing, so keep an earlier reason.
            if attempt == 1 or obstacle != _NO_RESPONSE or remaining >= _PROBE_TIMEOUT_S:
                reason = obstacle
            pause = min(self._retry.backoff_s(attempt, self._jitter()), _LONGEST_PROBE_PAUSE_S)
            yield Pause(min(pause, max(expires - self._clock(), 0.0)))
        what = f"Model {spec}" if spec else "The server"
        raise DeadlineExceeded(f"{what} was not ready within {timeout_s:g} s: {reason}")

    def _obstacle(self, spec: ModelSpec | None, timeout_s: float | None) -> Steps[str | None]:
        """Return why the server, or the model, cannot answer predictions yet, or None if it can. Makes one attempt."""
        try:
            reply = yield from self._once(self._wire.ready() if spec is None else self._wire.status(spec), timeout_s)
        except Unavailable as error:
            return error.message
        except DeadlineExceeded:
            return _NO_RESPONSE
        except NotFound as error:
            if spec is None:  # waiting cannot give a server a health check, but can bring a model
                raise
            return error.message
        if spec is None:
            return None if self._wire.read_ready(reply) else "it reports that it is not serving"
        states = self._wire.read_status(reply)
        if any(status.state == State.AVAILABLE for status in states):
            return None
        return "; ".join(map(_describe, states)) or "no version"

    def _read_prediction(self, reply: Reply, call: PredictCall, expires: float | None) -> Steps[Prediction]:
        if not self._wire.needs_signature:
            return self._wire.read_prediction(reply, call, None)
        version = self._wire.version(reply)
        spec = call.spec if version is None else ModelSpec(call.spec.name, version)
        signature = yield from self._signature(spec, call.signature_name, expires)
        try:
            return self._wire.read_prediction(reply, call, signature)
        except Internal:
            if version is not None:
                raise
        # The server did not report the version. The latest version may be newer than the cached metadata.
        self._metadata.pop(spec, None)
        signature = yield from self._signature(spec, call.signature_name, expires)
        return self._wire.read_prediction(reply, call, signature)

    def _signature(self, spec: ModelSpec, name: str | None, expires: float | None) -> Steps[Signature]:
        metadata = self._metadata.get(spec)
        if metadata is None:
            metadata = yield from self._fetch_metadata(spec, expires)
            self._metadata[spec] = metadata
            # The latest version, or the version behind a label, also gets an entry under its number.
            self._metadata[ModelSpec(spec.name, metadata.version)] = metadata
        return metadata.signature(name)

    def _fetch_metadata(self, spec: ModelSpec, expires: float | None, *, with_labels: bool = False) -> Steps[Metadata]:
        reply = yield from self._send(self._wire.metadata(spec, with_labels=with_labels), expires)
        return self._wire.read_metadata(reply, spec)

    def _expires(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._clock() + timeout_s

    def _remaining(self, expires: float | None) -> float | None:
        return None if expires is None else expires - self._clock()

    def _send(self, exchange: Exchange, expires: float | None) -> Steps[Reply]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return (yield from self._once(exchange, self._remaining(expires)))
            except TpuserveError as error:
                wait = self._retry.wait_s(error, attempt, self._jitter(), self._remaining(expires))
                if wait is None:
                    raise
            yield Pause(wait)

    def _once(self, exchange: Exchange, timeout_s: float | None) -> Steps[Reply]:
        if timeout_s is not None and timeout_s <= 0:
            raise DeadlineExceeded("The deadline passed before the request was sent.")
        reply = yield Send(exchange, timeout_s)
        assert reply is not None  # the drivers send a reply for each Send
        return reply

    def classify(self, call: ExampleCall, timeout_s: float | None) -> Steps[Classifications]:
        reply = yield from self._send(self._wire.classify(call), self._expires(timeout_s))
        return self._wire.read_classifications(reply, call)

    def regress(self, call: ExampleCall, timeout_s: float | None) -> Steps[Array]:
        reply = yield from self._send(self._wire.regress(call), self._expires(timeout_s))
        return self._wire.read_regressions(reply, call)

    def countdown(self, timeout_s: float | None) -> Callable[[], float | None]:
        """Return a function that returns the seconds left of `timeout_s`, or None without a limit."""
        expires = self._expires(timeout_s)
        return lambda: self._remaining(expires)


def _describe(status: VersionStatus) -> str:
    reason = f" ({status.error})" if status.error else ""
    return f"version {status.version} is {status.state.name}{reason}"
