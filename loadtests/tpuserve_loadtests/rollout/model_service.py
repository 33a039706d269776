"""Requests of a rollout to a server over gRPC: versions, labels, and reloads of the configuration."""

from contextlib import closing
from typing import Final, Self

from google.protobuf.message import DecodeError, Message

from tpuserve_client import errors
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.model import ModelSpec, Signature, State
from tpuserve_formats.messages import official
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.tolerance import Precision, fetch_precision
from tpuserve_loadtests.golden.version_metadata import fetch_field, fetch_grpc_field
from tpuserve_loadtests.rollout.evaluations import FIELD, Evaluation

_RELOAD: Final = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
# Metadata field of tpuserve.
_CONFIGURATION: Final = "tpuserve_configuration"
# A field number of 0, which protobuf does not have.
_NO_MESSAGE: Final = b"\x00"
# Errors for an unknown label and for an unknown model, from TensorFlow Serving and tpuserve.
_NO_LABEL: Final = (errors.InvalidArgument, errors.NotFound)


class ModelService:
    """gRPC client for use in a `with` statement. Every call blocks, and raises TpuserveError for an error response."""

    def __init__(
        self,
        address: str,
        access: Access,
        timeout_s: float,
        reload_timeout_s: float,
        control: Access | None = None,
    ) -> None:
        """Connect to the server. A reload waits until new models serve, so it has a separate timeout.

        Reloads use `control`, by default `access`. Raises InvalidArgument.
        """
        self._address = address
        self._control = control or access
        self._control.check_key(address)
        self._reload_timeout_s = reload_timeout_s
        self._client = access.client(address, timeout_s)
        self._timeout_s = timeout_s
        self._transport = access.transport(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()
        self._client.close()

    def available(self, model: str) -> tuple[int, ...]:
        """Return the available versions, ascending."""
        return tuple(sorted(status.version for status in self._client.status(model) if status.state is State.AVAILABLE))

    def labelled(self, model: str, label: str) -> int | None:
        """Return the version of a label, or None if the label has no version."""
        try:
            return self._client.metadata(model, label=label).version
        except _NO_LABEL:
            return None

    def signature(self, spec: ModelSpec, name: str | None) -> Signature:
        """Return a signature of a version. Raises InvalidArgument for an unknown name."""
        return self._client.metadata(spec.name, version=spec.version, label=spec.label).signature(name)

    def precision(self, spec: ModelSpec) -> Precision | None:
        """Fetch the tolerance from a version's manifest. Return None if the server does not report it."""
        return fetch_precision(lambda exchange: self.send(exchange, self._timeout_s), "grpc", spec)

    def evaluation(self, spec: ModelSpec) -> Evaluation | None:
        """Fetch the metrics of a version's export. Return None if the server does not report them."""
        found = fetch_field(lambda exchange: self.send(exchange, self._timeout_s), "grpc", spec, FIELD)
        try:
            return None if found is None else Evaluation.read(found.fields)
        except (KeyError, TypeError, ValueError):  # of a later server
            return None

    def configuration_sha256(self, model: str) -> str:
        """Fetch the hash of the configuration in force, through any model. Return "" if the server reports none."""
        try:
            found = fetch_grpc_field(
                lambda exchange: self.send(exchange, self._timeout_s), ModelSpec(model), _CONFIGURATION
            )
        except errors.InvalidArgument:  # of another server than tpuserve
            return ""
        return "" if found is None else str(found.fields.get("sha256", ""))

    def send(self, exchange: Exchange, timeout_s: float) -> Reply:
        return self._transport.send(exchange, timeout_s)

    def reload(self, config: Message) -> None:
        """Replace the whole configuration. `config` is a ModelServerConfig."""
        request = official.ReloadConfigRequest()
        request.config.ParseFromString(config.SerializeToString())  # keeps tpuserve's own fields as unknown fields
        reply = self._send_control(request.SerializeToString())
        try:
            status = official.ReloadConfigResponse.FromString(reply.body).status
        except DecodeError:
            raise errors.InvalidArgument("Cannot decode the response to the reload") from None
        if status.error_code:
            raise errors.from_code(status.error_code, status.error_message)

    def check_control(self) -> None:
        """Raise PermissionDenied or Unauthenticated if the server refuses reloads with these credentials.

        Sends a message that no server can decode, so that it changes nothing. Ignores all other errors.
        """
        try:
            self._send_control(_NO_MESSAGE)
        except (errors.PermissionDenied, errors.Unauthenticated):
            raise
        except errors.TpuserveError:
            return

    def _send_control(self, body: bytes) -> Reply:
        # A new connection for each reload: a rollout takes hours, and the file may contain a new token.
        with closing(self._control.transport(self._address)) as transport:
            return transport.send(Exchange(_RELOAD, body), self._reload_timeout_s)
