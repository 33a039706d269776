"""The model repository extension: the index over gRPC and in JSON, and the parameters of a load.

Source: Triton's server/docs/protocol/extension_model_repository.md, http_server.cc and grpc_server.cc.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format

from tpuserve_formats.messages.oip import ModelConfig, RepositoryIndexResponse
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.terms.errors import Internal, InvalidArgument
from tpuserve_server.wire.oip.metadata import PLATFORM

_FILE = "file:"
_CONFIG = "config"
_MOST_SHOWN = 64
# Fields of a configuration that may be present if they agree with the model.
_SAME = {"platform": ("", PLATFORM), "backend": ("", "tensorflow")}


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a model, or a model without versions. Empty texts are unknown."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def encode_index(entries: Sequence[IndexEntry]) -> bytes:
    """Serialize a RepositoryIndexResponse."""
    models = [
        RepositoryIndexResponse.ModelIndex(
            name=entry.name, version=entry.version, state=entry.state, reason=entry.reason
        )
        for entry in entries
    ]
    return RepositoryIndexResponse(models=models).SerializeToString()


def index_to_json(entries: Sequence[IndexEntry]) -> list[dict[str, str]]:
    """Build the REST response, which omits empty texts."""
    return [
        {
            name: text
            for name in ("name", "version", "state", "reason")
            if (text := getattr(entry, name)) or name == "name"
        }
        for entry in entries
    ]


def read_load_parameters(model: str, parameters: Mapping[str, str | bytes]) -> BatchingParameters | None:
    """Return the batching parameters that a load overrides, or None without an override.

    A `config` may set `max_batch_size`, and repeat the name and the platform.

    Raises:
        InvalidArgument: a parameter is unknown, or the configuration is malformed or sets another field.
        Internal: the request brings files. Triton's code for files that it cannot use.
    """
    for name in parameters:
        if name != _CONFIG and not name.startswith(_FILE):
            raise InvalidArgument(f"unrecognized load parameter '{name[:_MOST_SHOWN]}'.")
    files = [name for name in parameters if name.startswith(_FILE)]
    if files:
        raise Internal(
            f"failed to load '{model}', failed to poll from model repository: parameter '{files[0][:_MOST_SHOWN]}' is "
            "not supported, because this server loads models only from the base paths of its configuration"
        )
    text = parameters.get(_CONFIG)
    return None if text is None else _read_config(model, text)


def _read_config(model: str, text: str | bytes) -> BatchingParameters | None:
    config = ModelConfig()
    try:
        json_format.Parse(text, config, max_recursion_depth=32)
    # RecursionError and the others: the parser's reactions to some malformed texts.
    except (json_format.ParseError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise _refused(model, f"is not a ModelConfig in JSON: {str(error)[:256]}") from None
    for field, value in config.ListFields():
        allowed = ("", model) if field.name == "name" else _SAME.get(field.name, ())
        if field.name != "max_batch_size" and value not in allowed:
            raise _refused(model, f"can set only 'max_batch_size' on this server, got '{field.name}'")
    if config.max_batch_size < 0:
        raise _refused(model, f"sets 'max_batch_size' to {config.max_batch_size}, expected a positive number")
    return BatchingParameters(max_batch_size=config.max_batch_size) if config.max_batch_size else None


def _refused(model: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"failed to load '{model}', failed to poll from model repository: load parameter '{_CONFIG}' {what}"
    )
