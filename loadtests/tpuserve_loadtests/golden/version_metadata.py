"""Metadata fields of tpuserve, with facts of a version's manifest. Other servers do not have them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.messages import official
from tpuserve_loadtests.requests.protocols import Protocol, port_of


@dataclass(frozen=True, slots=True)
class MetadataField:
    """A field that is a JSON object, and the version that has it."""

    fields: Mapping[str, Any]
    version: int | str


def fetch_field(
    send: Callable[[Exchange], Reply], protocol: Protocol, spec: ModelSpec, name: str
) -> MetadataField | None:
    """Fetch a field of a version. Return None for other servers than tpuserve, which reject or ignore it, and if the
    version does not have it.

    OIP has no such metadata. tpuserve also answers TensorFlow Serving's requests on the same port. Blocks.
    """
    try:
        return fetch_grpc_field(send, spec, name) if port_of(protocol) == "grpc" else _fetch_rest(send, spec, name)
    except (TpuserveError, DecodeError, ValueError, KeyError, TypeError, AttributeError):
        return None


def fetch_grpc_field(send: Callable[[Exchange], Reply], spec: ModelSpec, name: str) -> MetadataField | None:
    """Fetch a field over gRPC, or None if the version does not have it.

    Raises TpuserveError, as InvalidArgument of a server that does not know the field. Raises DecodeError.
    """
    exchange = GrpcWire().metadata(spec)
    request = official.GetModelMetadataRequest.FromString(exchange.body)
    request.metadata_field[:] = [name]
    reply = send(replace(exchange, body=request.SerializeToString()))
    response = official.GetModelMetadataResponse.FromString(reply.body)
    if name not in response.metadata:
        return None
    fields = MessageToDict(Struct.FromString(response.metadata[name].value))
    return MetadataField(fields, response.model_spec.version.value)


def _fetch_rest(send: Callable[[Exchange], Reply], spec: ModelSpec, name: str) -> MetadataField:
    exchange = RestWire().metadata(spec)
    document = json.loads(send(replace(exchange, path=f"{exchange.path}?metadata_field={name}")).body)
    return MetadataField(document["metadata"][name], document["model_spec"]["version"])
