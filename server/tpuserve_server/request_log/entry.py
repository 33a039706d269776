"""One logged request with its answer, and the PredictionLog that it becomes.

A PredictionLog is put together from the messages as they went over the wire: nothing is parsed and written again.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_formats.messages.official import LogMetadata
from tpuserve_formats.varint import varint
from tpuserve_server.core.types import ServableId
from tpuserve_server.request_log.options import LogFormat

# A serialized message, or what makes one when the log is written, on the log's thread.
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
    """Where a model's entries go: files `PREFIX-…`, and every one of them to be `sampling_rate`'s share."""

    prefix: str
    format: LogFormat
    sampling_rate: float

    @property
    def files(self) -> tuple[str, LogFormat]:
        """Which files these are: targets that differ in their share alone write to the same."""
        return self.prefix, self.format


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A request that was answered. `signature` is empty for several; `time_s` counts from 1970."""

    target: LogTarget
    kind: LogKind
    servable: ServableId
    signature: str
    request: Payload
    response: Payload
    time_s: float
    # What it holds in memory while it waits, about.
    size_bytes: int

    def serialize(self) -> bytes:
        """The PredictionLog; may take a while."""
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
