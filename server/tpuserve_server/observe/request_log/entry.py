"""Logged request with its response, and its serialization as a PredictionLog.

A PredictionLog contains the serialized messages from the wire, without parsing them.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_formats.messages.official import LogMetadata
from tpuserve_formats.varint import varint
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.request_log.options import LogFormat

# A serialized message, or a function that serializes it on the log's thread.
Payload: TypeAlias = bytes | Callable[[], bytes]

_TAG_REQUEST, _TAG_RESPONSE, _TAG_METADATA = b"\x0a", b"\x12", b"\x0a"


class LogKind(enum.IntEnum):
    """PredictionLog's kinds by field number (tensorflow_serving/apis/prediction_log.proto)."""

    CLASSIFY = 2
    REGRESS = 3
    MULTI_INFERENCE = 4
    PREDICT = 6


@dataclass(frozen=True, slots=True)
class LogTarget:
    """Destination of a model's entries: files `PREFIX-…`, for the share `sampling_rate` of its requests."""

    prefix: str
    format: LogFormat
    sampling_rate: float

    @property
    def files(self) -> tuple[str, LogFormat]:
        """Key of the files. Targets that differ only in the sampling rate write to the same files."""
        return self.prefix, self.format


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Answered request. `signature` is empty for several signatures; `time_s` is Unix time."""

    target: LogTarget
    kind: LogKind
    servable: ServableId
    signature: str
    request: Payload
    response: Payload
    time_s: float
    # Approximate memory of the entry in the queue.
    size_bytes: int

    def serialize(self) -> bytes:
        """Return the serialized PredictionLog. May be slow."""
        messages = _field(_TAG_REQUEST, _bytes(self.request)) + _field(_TAG_RESPONSE, _bytes(self.response))
        # Length-delimited fields: their number and wire type 2.
        return _field(_TAG_METADATA, self._metadata()) + _field(varint(self.kind << 3 | 2), messages)

    def _metadata(self) -> bytes:
        metadata = LogMetadata(timestamp_secs=int(self.time_s), saved_model_tags=["serve"])
        metadata.model_spec.name = self.servable.name
        metadata.model_spec.version.value = self.servable.version
        metadata.model_spec.signature_name = self.signature
        metadata.sampling_config.sampling_rate = self.target.sampling_rate
        return bytes(metadata.SerializeToString())


def _bytes(payload: Payload) -> bytes:
    return payload if isinstance(payload, bytes) else payload()


def _field(tag: bytes, message: bytes) -> bytes:
    return b"".join((tag, varint(len(message)), message))
