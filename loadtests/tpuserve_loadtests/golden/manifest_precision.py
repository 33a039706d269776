"""The tolerance in a version's manifest (docs/reference/manifest.md), from its directory or from the server."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Exchange, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.messages import official
from tpuserve_loadtests.golden.tolerance import Precision
from tpuserve_loadtests.requests.protocols import Protocol, port_of

# A metadata field of tpuserve. Other servers reject it (gRPC) or ignore it (REST).
_FIELD: Final = "tpuserve_precision"


def read_precision(version: Path) -> Precision | None:
    """Read the precision from a version directory's manifest. Return None without a readable manifest."""
    try:
        manifest = json.loads((version / MANIFEST_FILE).read_bytes())
        return _precision({"compute_dtype": manifest["compute_dtype"], **manifest["parity"]}, f"{version}'s manifest")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def fetch_precision(send: Callable[[Exchange], Reply], protocol: Protocol, spec: ModelSpec) -> Precision | None:
    """Fetch a version's precision from a server. Return None for other servers than tpuserve, and without a manifest.

    OIP has no such metadata. tpuserve also answers TensorFlow Serving's requests on the same port. Blocks.
    """
    try:
        return _fetch_grpc(send, spec) if port_of(protocol) == "grpc" else _fetch_rest(send, spec)
    except (TpuserveError, DecodeError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _fetch_grpc(send: Callable[[Exchange], Reply], spec: ModelSpec) -> Precision:
    exchange = GrpcWire().metadata(spec)
    request = official.GetModelMetadataRequest.FromString(exchange.body)
    request.metadata_field[:] = [_FIELD]
    reply = send(replace(exchange, body=request.SerializeToString()))
    response = official.GetModelMetadataResponse.FromString(reply.body)
    fields = dict(Struct.FromString(response.metadata[_FIELD].value))
    return _precision(fields, _origin(spec.name, response.model_spec.version.value))


def _fetch_rest(send: Callable[[Exchange], Reply], spec: ModelSpec) -> Precision:
    exchange = RestWire().metadata(spec)
    document = json.loads(send(replace(exchange, path=f"{exchange.path}?metadata_field={_FIELD}")).body)
    return _precision(document["metadata"][_FIELD], _origin(spec.name, document["model_spec"]["version"]))


def _precision(fields: Mapping[str, Any], origin: str) -> Precision:
    return Precision(str(fields["compute_dtype"]), float(fields["atol"]), float(fields["rtol"]), origin)


def _origin(model: str, version: int | str) -> str:
    return f"{model} version {version}'s manifest"
