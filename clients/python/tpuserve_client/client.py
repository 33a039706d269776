"""The blocking client."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import numpy.typing as npt

from tpuserve_client.attempts import Attempt
from tpuserve_client.connections import Connections
from tpuserve_client.core import OWN_TIMEOUT, ClientCore, Timeout, make_transport
from tpuserve_client.exchange import Priority
from tpuserve_client.limits import Pool
from tpuserve_client.model import Metadata, ModelSpec, Prediction, VersionStatus
from tpuserve_client.request_headers import HeaderValue
from tpuserve_client.resolver import look_up
from tpuserve_client.retry import Retry
from tpuserve_client.settings import DEFAULT_TIMEOUT_S, Settings, Timing
from tpuserve_client.steps import Evaluate, Join, Pause, Resolve, Send, Step, Steps
from tpuserve_client.tls import Tls

T = TypeVar("T")
Inputs: TypeAlias = Mapping[str, npt.ArrayLike] | npt.ArrayLike


class Client(ClientCore):
    """A blocking client. Safe to share between threads; close it, or use it in a `with` statement.

    `address` is `host:port`, `grpc://host:port` or `unix:/path` for gRPC, or `http://host:port` for REST. `grpcs://`
    and `https://` use TLS, which `tls` configures. Several addresses, as a sequence or with commas between them, take
    turns; an address that keeps failing is omitted for a while. `dns:///host:port`, or `resolve_all`, does the same for
    all IP addresses of a host. The client connects at the first call. A forked process connects by itself.

    `headers` are sent with every request, as gRPC metadata or HTTP headers. A value is a string, or a function that
    returns one: the client calls it before each attempt, for example for a token that expires.

    `timeout_s` is the default deadline of a call, in seconds (None: no deadline). It covers all attempts and the pauses
    between them. `retry` and `pool` configure retries and connections. `on_attempt` is called after each attempt; the
    logger `tpuserve_client` reports attempts that are retried (INFO) and all others (DEBUG). Tests replace `sleep`,
    `clock` (monotonic seconds) and `jitter` (uniform over [0, 1)).

    Raises InvalidArgument for arguments that the client cannot use: an invalid address, certificates that cannot be
    read or used, and headers that cannot be sent.
    """

    _connections: Connections

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        tls: Tls | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        retry: Retry = Retry(),  # noqa: B008  frozen
        pool: Pool = Pool(),  # noqa: B008  frozen
        resolve_all: bool = False,
        on_attempt: Callable[[Attempt], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._sleep = sleep
        settings = Settings(address, tls, headers or {}, timeout_s, retry, pool, resolve_all, on_attempt)
        super().__init__(settings, Timing(clock, jitter))

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
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Prediction:
        """Run a model on `inputs`: arrays by name, or one array for a model with a single input.

        Arrays keep their dtype. Lists and numbers take the input's dtype from the model's metadata, which also names a
        single input. The client fetches the metadata once and caches it. `output_filter` names the outputs to return;
        an empty one returns all. The server runs a request with `priority` "low" only when requests of high priority
        (the default) leave room. `headers` are added to the client's headers; `timeout_s` and `retry` replace the
        client's. Raises TpuserveError if the server refuses the request, and InvalidArgument for a value that no tensor
        can hold.
        """
        spec = ModelSpec(model, version, label)
        call = self._call(spec, timeout_s, headers, retry)
        return self._run(self._operations.predict(call, spec, inputs, signature_name, tuple(output_filter), priority))

    def metadata(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str | None = None,
        with_labels: bool = False,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Metadata:
        """Return the model's signatures: names, dtypes and shapes of inputs and outputs.

        `with_labels` also requests the names of the model's classes. TensorFlow Serving refuses that over gRPC with
        InvalidArgument.
        """
        spec = ModelSpec(model, version, label)
        call = self._call(spec, timeout_s, headers, retry)
        return self._run(self._operations.metadata(call, spec, with_labels=with_labels))

    def status(
        self,
        model: str,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> tuple[VersionStatus, ...]:
        """Return the state of each version (or of one), newest first. Raises NotFound for an unknown model."""
        spec = ModelSpec(model, version)
        return self._run(self._operations.status(self._call(spec, timeout_s, headers, retry), spec))

    def is_ready(
        self,
        model: str | None = None,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> bool:
        """Return whether the server (or `model`) answers predictions now, and False if the server is unreachable.

        Without a model the client calls grpc.health.v1 or /readyz. TensorFlow Serving enables neither by default: the
        client raises Unimplemented or NotFound. Name a model for such a server.
        """
        spec = None if model is None else ModelSpec(model, version)
        return self._run(self._operations.is_ready(self._call(spec, timeout_s, headers), spec))

    def wait_until_ready(self, timeout_s: float, model: str | None = None, *, version: int | None = None) -> None:
        """Block until `is_ready`. After `timeout_s` seconds, raise DeadlineExceeded with the last reason."""
        spec = None if model is None else ModelSpec(model, version)
        self._run(self._operations.wait_until_ready(self._call(spec, timeout_s), spec))

    def close(self) -> None:
        """Close the connections. Later calls raise FailedPrecondition."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _make_connections(self) -> Connections:
        return Connections(
            lambda endpoint: make_transport(
                endpoint, self._endpoint_tls(endpoint), self._endpoint_headers(endpoint), self._settings
            )
        )

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._carry_out(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            returned: T = end.value
            return returned
        finally:
            steps.close()

    def _carry_out(self, step: Step) -> Any:  # noqa: ANN401  the result depends on the step
        match step:
            case Send():
                return self._connections.get(step.endpoint).send(step.exchange, step.timeout_s)
            case Pause():
                self._sleep(step.seconds)
            case Join():
                with suppress(TimeoutError):
                    step.future.result(step.timeout_s)
            case Resolve():
                return look_up(step.host)
            case Evaluate():
                return step.function()
        return None
