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
from tpuserve_client.credentials import ApiKey
from tpuserve_client.dtypes import Array
from tpuserve_client.examples import Example
from tpuserve_client.exchange import Priority, example_call
from tpuserve_client.limits import Pool
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, VersionStatus
from tpuserve_client.names import output_names
from tpuserve_client.request_headers import HeaderValue
from tpuserve_client.resolver import look_up
from tpuserve_client.retry import Retry
from tpuserve_client.row_parts import join_rows
from tpuserve_client.settings import DEFAULT_TIMEOUT_S, Settings, Timing
from tpuserve_client.split_predict import SplitPredict, first_then_in_threads
from tpuserve_client.steps import Evaluate, Join, Pause, Resolve, Send, Step, Steps
from tpuserve_client.tls import Tls

T = TypeVar("T")
Inputs: TypeAlias = Mapping[str, npt.ArrayLike] | npt.ArrayLike


class Client(ClientCore):
    """A blocking client. Safe to share between threads; close it, or use it in a `with` statement.

    `address` is `host:port`, `grpc://host:port` or `unix:/path` for gRPC, or `http://host:port` for REST. `grpcs://`
    and `https://` use TLS, which `tls` configures. `oip+` before a scheme selects the Open Inference Protocol of Triton
    and KServe, as in `oip+http://host:port`. Several addresses, as a sequence or with commas between them, take turns;
    an address that keeps failing is omitted for a while. `dns:///host:port`, or `resolve_all`, does the same for all IP
    addresses of a host. The client connects at the first call. A forked process connects by itself.

    `api_key` is an API key or token, or a function that returns the current one, such as a `KeyFile`. The client sends
    it as `authorization: Bearer KEY`. It calls the function before each attempt, and again if the server answers
    Unauthenticated: with a new token it sends the request once more. The client refuses to send a key in plaintext to
    another machine, unless you set `allow_plaintext_key`. No message, log line or repr contains the key.

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
        api_key: ApiKey | None = None,
        allow_plaintext_key: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._sleep = sleep
        settings = Settings(
            address,
            tls,
            headers or {},
            timeout_s,
            retry,
            pool,
            resolve_all,
            on_attempt,
            api_key,
            allow_plaintext_key,
        )
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
        max_batch_size: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Prediction:
        """Run a model on `inputs`: arrays by name, or one array for a model with a single input.

        Arrays keep their dtype. Lists and numbers take the input's dtype from the model's metadata, which also names a
        single input. The client fetches the metadata once and caches it. `output_filter` is the output to return, or a
        sequence of outputs; an empty one returns all. The server runs a request with `priority` "low" only when
        requests of high priority (the default) leave room.

        With `max_batch_size`, the client divides inputs with more rows (the size of the first dimension) and joins the
        outputs. All parts go to one version, within one deadline: first one part, then up to four at a time. If a part
        fails, the call raises its error.

        `headers` are added to the client's headers; `timeout_s` and `retry` replace the client's.

        Raises TpuserveError if the server refuses the request, and InvalidArgument for a value that no tensor can hold.
        With `max_batch_size` it raises InvalidArgument also for inputs and outputs without a common number of rows.
        """
        spec, names = ModelSpec(model, version, label), output_names(output_filter)
        call = self._call(spec, timeout_s, headers, retry)
        if max_batch_size is not None:
            split = SplitPredict(self._operations, call, spec, signature_name, names, priority, max_batch_size)
            return self._predict_parts(split, inputs)
        return self._run(self._operations.predict(call, spec, inputs, signature_name, names, priority))

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
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Classifications:
        """Classify examples: mappings from feature name to a value or values. Return the classes of each example.

        Integers and bools become int64 features, other numbers float32, str and bytes bytes. The server merges the
        features of `context` into each example. A class is a tuple of label and score, in the model's order. Raises
        InvalidArgument for no example, for values that no feature can hold, and for a signature of another method.
        """
        spec = ModelSpec(model, version, label)
        converted = example_call(spec, examples, context, signature_name, priority)
        return self._run(self._operations.classify(self._call(spec, timeout_s, headers, retry), converted))

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
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Array:
        """Return the model's value for each example, a float32 array of shape [n]. Examples are as in `classify`."""
        spec = ModelSpec(model, version, label)
        converted = example_call(spec, examples, context, signature_name, priority)
        return self._run(self._operations.regress(self._call(spec, timeout_s, headers, retry), converted))

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
        """Return the state of each version (or of one), newest first. Raises NotFound for an unknown model.

        Over the Open Inference Protocol, a server reports only the versions that are ready.
        """
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

        Without `model`, the client requests the readiness of the server: over gRPC with grpc.health.v1, over REST with
        /readyz, and over the Open Inference Protocol with its own request. TensorFlow Serving serves neither
        grpc.health.v1 nor /readyz by default. The client then raises Unimplemented or NotFound. Set `model` for such a
        server.
        """
        spec = None if model is None else ModelSpec(model, version)
        return not self._run(self._operations.why_not_ready(self._call(spec, timeout_s, headers), spec))

    def why_not_ready(
        self,
        model: str | None = None,
        *,
        version: int | None = None,
        timeout_s: Timeout = OWN_TIMEOUT,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> str:
        """Return why the server (or `model`) answers no predictions now, or "" if it does. See `is_ready`."""
        spec = None if model is None else ModelSpec(model, version)
        return self._run(self._operations.why_not_ready(self._call(spec, timeout_s, headers), spec))

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

    def _predict_parts(self, split: SplitPredict, inputs: Inputs) -> Prediction:
        parts = self._run(split.parts(inputs))
        return join_rows(first_then_in_threads(lambda part: self._run(split.predict(part)), parts))

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
