"""GetModelStatus: version states as messages and as JSON."""

from collections.abc import Sequence

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import (
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelVersionStatus,
    StatusProto,
)
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec, VersionStatus
from tpuserve_server.wire.model_spec import decode_model_spec


def decode_status_request(body: bytes) -> ModelSpec:
    """Decode the requested spec. Raises InvalidArgument if the request is malformed or has no spec.

    The service refuses an empty name as an unknown model.
    """
    try:
        request = GetModelStatusRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed GetModelStatusRequest") from None
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return decode_model_spec(request.model_spec)


def encode_status_response(statuses: Sequence[VersionStatus]) -> bytes:
    """Serialize a GetModelStatusResponse in the given order."""
    return bytes(_response(statuses).SerializeToString())


def status_to_json(statuses: Sequence[VersionStatus]) -> dict[str, object]:
    """Build the REST response as upstream's ToJsonString: proto names, default values included, version as a string."""
    fields: dict[str, object] = MessageToDict(
        _response(statuses), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def _response(statuses: Sequence[VersionStatus]) -> GetModelStatusResponse:
    return GetModelStatusResponse(
        model_version_status=[
            ModelVersionStatus(
                version=status.servable.version,
                state=int(status.state),
                # The only text for people in this message. The code stays OK while the version may still load.
                status=StatusProto(error_code=status.error_code, error_message=status.error or status.waits),
            )
            for status in statuses
        ]
    )
