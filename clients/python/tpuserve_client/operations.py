"""The client's operations as steps without input or output, shared by the blocking and the asyncio client.

Each operation is a generator of steps (`steps.py`). The two drivers in `client.py` and `async_client.py` carry them
out. Deadlines and the signature cache are implemented only here; retries are in `attempts.py`.
"""

from types import TracebackType

from tpuserve_client.attempts import Attempts, Call
from tpuserve_client.casting import named_arrays, needs_signature
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    TpuserveError,
)
from tpuserve_client.exchange import ExampleCall, PredictCall, Priority, Reply, Wire
from tpuserve_client.flights import Flights
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, Signature, VersionStatus
from tpuserve_client.settings import Timing
from tpuserve_client.steps import Join, Pause, Steps

# Timeout of one readiness probe, and the longest pause before the next probe.
_PROBE_TIMEOUT_S = 5.0
_LONGEST_PROBE_PAUSE_S = 1.0
_NO_RESPONSE = "no response"
_NO_REASON = "it gives no reason"


class Operations:
    """The steps of each operation over one wire.

    Safe to share between threads: the cache is a dict whose entries are replaced as a whole, and concurrent calls share
    one request for the same metadata.
    """

    def __init__(self, wire: Wire, attempts: Attempts, timing: Timing) -> None:
        self._wire = wire
        self._attempts = attempts
        self._clock = timing.clock
        self._jitter = timing.jitter
        self._metadata: dict[ModelSpec, Metadata] = {}
        self._flights = Flights[ModelSpec]()

    def predict(
        self,
        call: Call,
        spec: ModelSpec,
        inputs: object,
        signature_name: str | None,
        output_filter: tuple[str, ...],
        priority: Priority | None,
    ) -> Steps[Prediction]:
        with self._context(call):
            try:
                signature = None
                if needs_signature(inputs):
                    signature = yield from self._signature(call, spec, signature_name)
                arrays = named_arrays(inputs, spec, signature)
                predict = PredictCall(spec, arrays, signature_name, output_filter, priority)
                reply = yield from self._attempts.send(call, self._wire.predict(predict))
            except (NotFound, InvalidArgument, FailedPrecondition):
                self._metadata.pop(spec, None)  # the cached metadata may belong to an unloaded version
                raise
            if self._wire.needs_signature:
                return (yield from self._read_with_signature(call, reply, predict))
            return self._wire.read_prediction(reply, predict, None)

    def metadata(self, call: Call, spec: ModelSpec, *, with_labels: bool = False) -> Steps[Metadata]:
        with self._context(call):
            return (yield from self._fetch_metadata(call, spec, with_labels=with_labels))

    def status(self, call: Call, spec: ModelSpec) -> Steps[tuple[VersionStatus, ...]]:
        with self._context(call):
            reply = yield from self._attempts.send(call, self._wire.status(spec))
            return self._wire.read_status(reply)

    def classify(self, call: Call, examples: ExampleCall) -> Steps[Classifications]:
        with self._context(call):
            reply = yield from self._attempts.send(call, self._wire.classify(examples))
            return self._wire.read_classifications(reply, examples)

    def regress(self, call: Call, examples: ExampleCall) -> Steps[Array]:
        with self._context(call):
            reply = yield from self._attempts.send(call, self._wire.regress(examples))
            return self._wire.read_regressions(reply, examples)

    def why_not_ready(self, call: Call, spec: ModelSpec | None) -> Steps[str]:
        with self._context(call):
            reason = yield from self._obstacle(call, spec, self._attempts.remaining_s(call))
            return "" if reason is None else reason or _NO_REASON

    def wait_until_ready(self, call: Call, spec: ModelSpec | None) -> Steps[None]:
        with self._context(call):
            yield from self._wait_until_ready(call, spec)

    def _wait_until_ready(self, call: Call, spec: ModelSpec | None) -> Steps[None]:
        if call.expires_s is None:
            raise InvalidArgument("timeout_s must be a number of seconds, because the client waits at most that long.")
        reason = "the client sent no request"
        attempt = 0
        while (remaining := call.expires_s - self._clock()) > 0:
            attempt += 1
            obstacle = yield from self._obstacle(call, spec, min(remaining, _PROBE_TIMEOUT_S))
            if obstacle is None:
                return
            # A probe that the caller's deadline cuts short proves nothing, so keep an earlier reason.
            if attempt == 1 or obstacle != _NO_RESPONSE or remaining >= _PROBE_TIMEOUT_S:
                reason = obstacle
            pause = min(call.retry.backoff_s(attempt, self._jitter()), _LONGEST_PROBE_PAUSE_S)
            yield Pause(min(pause, max(call.expires_s - self._clock(), 0.0)))
        what = f"Model {spec}" if spec else "The server"
        raise DeadlineExceeded(f"{what} was not ready within {call.limit_s:g} s: {reason}")

    def _obstacle(self, call: Call, spec: ModelSpec | None, timeout_s: float | None) -> Steps[str | None]:
        """Return why the server, or the model, cannot answer predictions yet, or None if it can. Makes one attempt."""
        exchange = self._wire.ready() if spec is None else self._wire.model_ready(spec)
        try:
            reply = yield from self._attempts.once(call, exchange, timeout_s)
        except self._wire.not_ready as error:
            return error.message
        except DeadlineExceeded:
            return _NO_RESPONSE
        except NotFound as error:
            if spec is None:  # waiting cannot give a server a health check, but can bring a model
                raise
            return error.message
        if spec is None:
            return None if self._wire.read_ready(reply) else "it reports that it is not serving"
        return self._wire.read_model_ready(reply)

    def _read_with_signature(self, call: Call, reply: Reply, predict: PredictCall) -> Steps[Prediction]:
        version = self._wire.version(reply)
        spec = predict.spec if version is None else ModelSpec(predict.spec.name, version)
        signature = yield from self._signature(call, spec, predict.signature_name)
        try:
            return self._wire.read_prediction(reply, predict, signature)
        except Internal:
            if version is not None:
                raise
        # The server did not report the version. The latest version may be newer than the cached metadata.
        self._metadata.pop(spec, None)
        signature = yield from self._signature(call, spec, predict.signature_name)
        return self._wire.read_prediction(reply, predict, signature)

    def _signature(self, call: Call, spec: ModelSpec, name: str | None) -> Steps[Signature]:
        while (metadata := self._metadata.get(spec)) is None:
            flight, is_leader = self._flights.join(spec)
            if is_leader:
                yield from self._fetch_for_all(call, spec)
                continue
            yield Join(flight.done, self._attempts.remaining_s(call))
            if not flight.done.done():
                raise DeadlineExceeded(f"The metadata of model {spec} did not arrive before the deadline.")
            flight.raise_error()
        return metadata.signature(name)

    def _fetch_for_all(self, call: Call, spec: ModelSpec) -> Steps[None]:
        """Fetch and cache the metadata of `spec`, for all calls that wait for it."""
        error: TpuserveError | None = None
        try:
            metadata = yield from self._fetch_metadata(call, spec)
            # The latest version, or the version behind a label, also gets an entry under its number.
            self._metadata[ModelSpec(spec.name, metadata.version)] = metadata
            self._metadata[spec] = metadata
        except TpuserveError as caught:
            error = caught
            raise
        finally:  # also if the caller cancels this call: another call then sends the request
            self._flights.land(spec, error)

    def _fetch_metadata(self, call: Call, spec: ModelSpec, *, with_labels: bool = False) -> Steps[Metadata]:
        reply = yield from self._attempts.send(call, self._wire.metadata(spec, with_labels=with_labels))
        return self._wire.read_metadata(reply, spec)

    def _context(self, call: Call) -> "_Context":
        return _Context(self._attempts, call)


class _Context:
    """Adds the call's context to each TpuserveError that leaves the operation. Faster than a generator."""

    __slots__ = ("_attempts", "_call")

    def __init__(self, attempts: Attempts, call: Call) -> None:
        self._attempts = attempts
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, TpuserveError):
            self._attempts.add_context(error, self._call)
