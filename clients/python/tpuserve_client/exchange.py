"""The seam between protocols and transports: a request as bytes, its reply as bytes, and who carries them.

A Wire turns calls into exchanges and replies into answers, and does no input or output. A Transport carries exchanges
and knows nothing of what is in them; it comes in a blocking and in an asyncio form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Protocol, TypeAlias, get_args

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import Metadata, ModelSpec, Prediction, Signature, VersionStatus

Priority: TypeAlias = Literal["high", "low"]

# tpuserve's; TensorFlow Serving takes no notice of it.
PRIORITY_HEADER: Final = "x-tpuserve-priority"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. `path` is a gRPC method or a URL path; `method` is HTTP's and means nothing to gRPC.

    `headers` are gRPC's metadata over there; their keys are lower case.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer. `headers` have lower-case keys; gRPC leaves them empty."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PredictCall:
    """A prediction asked for: arrays as `tensor.as_array` makes them. No `output_filter` means every output.

    InvalidArgument for a priority that is none.
    """

    spec: ModelSpec
    inputs: Mapping[str, Array]
    signature_name: str | None = None
    output_filter: tuple[str, ...] = ()
    priority: Priority | None = None

    def __post_init__(self) -> None:
        if self.priority not in (None, *get_args(Priority)):
            raise InvalidArgument(f"A priority is 'high' or 'low', not {self.priority!r:.40}.")

    @property
    def headers(self) -> dict[str, str]:
        """What goes beside the message, by either protocol."""
        return {} if self.priority is None else {PRIORITY_HEADER: self.priority}


class Wire(Protocol):
    """A protocol's messages. Reading raises Internal for a reply that makes no sense."""

    # Whether a predict reply can be read only by someone who knows the model's signature.
    needs_signature: ClassVar[bool]

    def predict(self, call: PredictCall) -> Exchange: ...

    def version(self, reply: Reply) -> int | None:
        """The version that answered a predict call, so far as that shows before reading the outputs."""

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction: ...

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange: ...

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata: ...

    def status(self, spec: ModelSpec) -> Exchange: ...

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]: ...

    def ready(self) -> Exchange: ...

    def read_ready(self, reply: Reply) -> bool: ...


class Transport(Protocol):
    """Carries exchanges; safe to share between threads."""

    def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        """Block until the reply is here. Any failure is a TpuserveError; no connection is Unavailable."""

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Carries exchanges on one event loop. Cancelling `send` cancels the request."""

    async def send(self, exchange: Exchange, timeout_s: float | None) -> Reply:
        """The reply. Any failure is a TpuserveError; no connection is Unavailable."""

    async def close(self) -> None: ...
