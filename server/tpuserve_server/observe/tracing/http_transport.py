"""OTLP over HTTP with protobuf (OpenTelemetry's specification, protocol/otlp.md)."""

import contextlib
import gzip
import http.client
import socket
import ssl
import time
from typing import Final

from tpuserve_server.observe.tracing.options import OtlpTarget
from tpuserve_server.observe.tracing.receiver_reply import (
    ExportError,
    Rejection,
    read_rejection,
    read_retry_after_s,
    reason_of,
)

_MOST_RESPONSE_BYTES: Final = 1 << 16
_COMPRESSION_LEVEL: Final = 1
# A receiver may close an idle connection at any time.
_STALE: Final = (ConnectionError, http.client.BadStatusLine)
# Statuses for which OpenTelemetry's protocol allows a retry.
_RETRYABLE: Final = (429, 502, 503, 504)
_PROTOBUF: Final = "application/x-protobuf"


class HttpTransport:
    """One connection that stays open between requests. One thread calls `send`, any thread `close`."""

    def __init__(self, target: OtlpTarget) -> None:
        """Read the certificates. Raises ExportError if they cannot be used."""
        self._target = target
        self._tls = _tls(target) if target.is_tls else None
        encoding = {"content-encoding": "gzip"} if target.is_compressed else {}
        self._headers = {**dict(target.headers), "content-type": _PROTOBUF, **encoding}
        self._connection: http.client.HTTPConnection | None = None

    def send(self, body: bytes, timeout_s: float) -> Rejection:
        """Send a request, and wait at most about `timeout_s` for each part of the response. See Transport."""
        content = gzip.compress(body, _COMPRESSION_LEVEL) if self._target.is_compressed else body
        is_reused = self._connection is not None
        try:
            try:
                response, reply = self._post(content, timeout_s)
            except _STALE:
                if not is_reused:
                    raise
                self.close()
                response, reply = self._post(content, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            is_lasting = not isinstance(error, OSError) or isinstance(error, ssl.SSLError)
            raise ExportError(reason_of(error), retry_after_s=None if is_lasting else 0.0) from error
        if not 200 <= response.status < 300:
            raise ExportError(
                f"HTTP {response.status} {response.reason}".rstrip(), retry_after_s=_retry_after_s(response)
            )
        # A proxy may answer with a page.
        return read_rejection(reply) if response.headers.get_content_type() == _PROTOBUF else Rejection()

    def close(self) -> None:
        """End the connection, and a `send` that waits on it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if (stream := connection.sock) is not None:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _post(self, body: bytes, timeout_s: float) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._connection or self._connect(timeout_s)
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request("POST", self._target.path, body, self._headers)
        response = connection.getresponse()
        reply = response.read(_MOST_RESPONSE_BYTES)
        if len(reply) == _MOST_RESPONSE_BYTES:
            self.close()
        return response, reply

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port = self._target.host, self._target.port
        if self._tls is None:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls)
        return self._connection


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    if response.status not in _RETRYABLE:
        return None
    return read_retry_after_s(response.headers.get("retry-after", ""), time.time())


def _tls(target: OtlpTarget) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.ca_file)
        if target.certificate_file is not None:
            context.load_cert_chain(target.certificate_file, target.key_file)
    except OSError as error:  # SSLError is one, too.
        raise ExportError(f"a certificate cannot be used: {reason_of(error)}") from error
    return context
