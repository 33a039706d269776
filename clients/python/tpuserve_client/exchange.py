"""The seam between protocols and transports: a request as bytes, its reply as bytes, and the two interfaces.

A Wire converts calls to exchanges and replies to results, without input or output. A Transport sends exchanges and does
not know their content. It has a blocking and an asyncio form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal, InvalidArgument, TpuserveError
from tpuserve_client.examples import Features, as_examples, as_features
from tpuserve_client.model import Classifications, Metadata, ModelSpec, Prediction, Signature, VersionStatus
from tpuserve_client.names import check_name, shown
from tpuserve_formats.counted import counted

Priority: TypeAlias = Literal["high", "low"]

# tpuserve's header. TensorFlow Serving ignores it.
PRIORITY_HEADER: Final = "x-tpuserve-priority"
# The first words of an error about a server that no transport reaches.
CANNOT_CONNECT: Final = "Cannot connect"
CONNECTION_ENDED: Final = "The connection ended before the response was complete"
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. `path` is a gRPC method or a URL path; `method` is the HTTP method, which gRPC ignores.

    `headers` have lower-case keys. gRPC sends them as metadata. They may contain secrets.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Reply(NamedTuple):
    """A successful response. `headers` have lower-case keys; gRPC leaves them empty."""

    body: bytes
    headers: Mapping[str, str] = _NO_HEADERS


def check_priority(priority: object) -> None:
    """Raise InvalidArgument for a priority other than None, "high" and "low"."""
    if priority is not None and not (isinstance(priority, str) and priority in get_args(Priority)):
        raise InvalidArgument(f"The priority must be 'high' or 'low', not {shown(priority)}.")


@dataclass(frozen=True, slots=True)
class PredictCall:
    """The parameters of a prediction, with arrays from `arrays.as_array`. An empty `output_filter` means every output.

    Raises InvalidArgument for an unknown priority and for the name of a signature that is not a string.
    """

    spec: ModelSpec
    inputs: Mapping[str, Array]
    signature_name: str | None = None
    output_filter: tuple[str, ...] = ()
    priority: Priority | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority)
        if self.signature_name is not None:
            check_name("name of the signature", self.signature_name)

    @property
    def headers(self) -> dict[str, str]:
        """Headers to send with TensorFlow Serving's messages, over gRPC and REST."""
        return _headers(self.priority)


@dataclass(frozen=True, slots=True)
class ExampleCall:
    """The parameters of a classification or regression, with examples from `examples.as_examples`.

    The server merges the features of `context` into each example. Raises InvalidArgument like `PredictCall`.
    """

    spec: ModelSpec
    examples: Sequence[Features]
    context: Features | None = None
    signature_name: str | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        check_priority(self.priority)
        if self.signature_name is not None:
            check_name("name of the signature", self.signature_name)

    @property
    def headers(self) -> dict[str, str]:
        """Headers to send with TensorFlow Serving's messages, over gRPC and REST."""
        return _headers(self.priority)

    def check_count(self, results: int) -> None:
        """Raise Internal unless there is a result for each example."""
        if results != len(self.examples):
            raise Internal(
                f"Model {self.spec} returned {counted(results, 'result')} for {counted(len(self.examples), 'example')}."
            )


def example_call(
    spec: ModelSpec, examples: object, context: object, signature_name: str | None, priority: Priority | None
) -> ExampleCall:
    """Convert a caller's examples and context. Raises InvalidArgument like `as_examples` and `ExampleCall`."""
    features = None if context is None else as_features(context, "The context")
    return ExampleCall(spec, as_examples(examples), features, signature_name, priority)


def _headers(priority: Priority | None) -> dict[str, str]:
    return {} if priority is None else {PRIORITY_HEADER: priority}


class Wire(Protocol):
    """A protocol's messages. The read methods raise Internal for a malformed reply."""

    # Whether reading a predict reply requires the model's signature.
    needs_signature: ClassVar[bool]
    # Errors of a readiness request that mean: the server, or the model, is not ready.
    not_ready: ClassVar[tuple[type[TpuserveError], ...]]

    def predict(self, call: PredictCall) -> Exchange: ...

    def version(self, reply: Reply) -> int | None:
        """Return the version that answered a predict call, or None if only the outputs reveal it."""

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction: ...

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange: ...

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata: ...

    def status(self, spec: ModelSpec) -> Exchange: ...

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]: ...

    def ready(self) -> Exchange: ...

    def read_ready(self, reply: Reply) -> bool: ...

    def model_ready(self, spec: ModelSpec) -> Exchange: ...

    def read_model_ready(self, reply: Reply) -> str | None:
        """Return why the model cannot answer predictions, or None if it can."""

    def classify(self, call: ExampleCall) -> Exchange: ...

    def read_classifications(self, reply: Reply, call: ExampleCall) -> Classifications: ...

    def regress(self, call: ExampleCall) -> Exchange: ...

    def read_regressions(self, reply: Reply, call: ExampleCall) -> Array:
        """Return a float32 array with a value for each example."""


class Transport(Protocol):
    """Sends exchanges. Safe to share between threads."""

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        """Block until the reply arrives. Raises TpuserveError for every failure, Unavailable without a connection."""

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Sends exchanges on one event loop. Cancelling `send` cancels the request."""

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        """Return the reply. Raises TpuserveError for every failure, Unavailable without a connection."""

    def release_idle(self) -> bool:
        """Drop what must not exist when the process forks, unless calls use it. Any thread may call this.

        Return whether there was any.
        """
        ...

    async def close(self) -> None: ...
