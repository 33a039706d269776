"""Envoy's own figures on the metrics page: a chosen few of its statistics, with Envoy's names.

Envoy has no statistics of response flags: only its access log has them. The counters of resets, timeouts and refusals
tell the same reasons apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from tpuserve_server.hosts.envoy.admin import AdminError, EnvoyAdmin
from tpuserve_server.hosts.envoy.config import STAT_PREFIX

# A page must not wait longer for Envoy, whose main thread answers within milliseconds.
TIMEOUT_S: Final = 1.0


# Names of the statistics, as a regular expression. Those of the administration's listener begin with `listener.admin`.
_STATISTICS: Final = (
    rf"^(http\.{STAT_PREFIX}\.downstream_|{STAT_PREFIX}\.http_local|listener\.[^a]|overload\.|server\.)"
)
_MANAGER: Final = ("envoy_http_conn_manager_prefix",)
_LISTENER: Final = ("envoy_listener_address",)


@dataclass(frozen=True, slots=True)
class Figure:
    """One of Envoy's metrics, with its name, kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def _manager(name: str, kind: str, text: str) -> Figure:
    return Figure(f"envoy_http_downstream_{name}", kind, _MANAGER, text)


def _listener(name: str, text: str) -> Figure:
    return Figure(f"envoy_listener_{name}", "counter", _LISTENER, text)


def _gauge(name: str, text: str) -> Figure:
    return Figure(f"envoy_{name}", "gauge", (), text)


FIGURES: Final = (
    _manager("cx_total", "counter", "Connections of clients, on all addresses."),
    _manager("cx_active", "gauge", "Open connections."),
    _manager("cx_ssl_active", "gauge", "Open connections with TLS."),
    _manager("cx_http2_active", "gauge", "Open connections with HTTP/2."),
    _manager("cx_protocol_error", "counter", "Connections closed after an error of their protocol."),
    _manager("cx_idle_timeout", "counter", "Connections closed because they were idle."),
    _manager("cx_rx_bytes_total", "counter", "Bytes received."),
    _manager("cx_tx_bytes_total", "counter", "Bytes sent."),
    _manager("cx_rx_bytes_buffered", "gauge", "Received bytes that wait for the application."),
    _manager("cx_tx_bytes_buffered", "gauge", "Bytes of responses that clients have not read."),
    _manager("rq_total", "counter", "Requests, also those that never reach the application."),
    _manager("rq_active", "gauge", "Requests without a complete response."),
    Figure(
        "envoy_http_downstream_rq_xx",
        "counter",
        ("envoy_response_code_class", *_MANAGER),
        "Responses by the first digit of their HTTP status.",
    ),
    _manager("rq_rx_reset", "counter", "Requests that clients reset or abandoned."),
    _manager("rq_tx_reset", "counter", "Requests that the server reset."),
    _manager("rq_timeout", "counter", "Requests whose body took too long to arrive."),
    _manager("rq_header_timeout", "counter", "Requests whose headers took too long to arrive."),
    _manager("rq_too_large", "counter", "Requests whose body did not fit Envoy's buffer."),
    _manager("rq_overload_close", "counter", "Requests refused because of an overload action."),
    Figure(
        "envoy_http_local_rate_limit_rate_limited",
        "counter",
        ("envoy_local_http_ratelimit_prefix",),
        "Requests refused because of --max_requests_per_second. Absent without a limit.",
    ),
    _listener("downstream_cx_overload_reject", "Connections refused because of an overload action."),
    _listener("downstream_global_cx_overflow", "Connections refused because of --max_connections."),
    _listener("downstream_cx_transport_socket_connect_timeout", "TLS handshakes that took too long."),
    _listener("ssl_handshake", "TLS handshakes that succeeded. Absent without TLS, like the next three."),
    _listener("ssl_connection_error", "TLS connections that failed for another reason than a certificate."),
    _listener("ssl_fail_verify_no_cert", "TLS connections without the client's certificate, which is required."),
    _listener("ssl_fail_verify_error", "TLS connections whose client's certificate is not from the authority."),
    _gauge(
        "overload_envoy_overload_actions_stop_accepting_requests_active",
        "1 while Envoy refuses requests, near --max_heap_bytes.",
    ),
    _gauge(
        "overload_envoy_overload_actions_reduce_timeouts_active",
        "1 while Envoy closes idle connections sooner, near --max_heap_bytes.",
    ),
    _gauge(
        "overload_envoy_resource_monitors_fixed_heap_pressure",
        "Percent of --max_heap_bytes in use. Absent without a limit.",
    ),
    _gauge(
        "overload_envoy_resource_monitors_global_downstream_max_connections_pressure",
        "Percent of --max_connections in use.",
    ),
    _gauge("server_memory_allocated", "Bytes that Envoy's code holds."),
    _gauge("server_memory_heap_size", "Bytes of Envoy's heap, used and free."),
    _gauge("server_memory_physical_size", "Bytes of Envoy's heap in memory."),
    _gauge(
        "server_days_until_first_cert_expiring",
        "Days until the first TLS certificate expires, or 4294967295 without TLS.",
    ),
)

# Meanings of the label values, by label.
LABELS: Final = {
    "envoy_http_conn_manager_prefix": STAT_PREFIX,
    "envoy_local_http_ratelimit_prefix": STAT_PREFIX,
    "envoy_response_code_class": "1 to 5, the first digit of the HTTP status",
    "envoy_listener_address": "the first address that Envoy listens on; the figures are those of all addresses",
}


class EnvoyFigures:
    """Reads the figures of one Envoy. Thread-safe: it has no state."""

    def __init__(self, admin: EnvoyAdmin) -> None:
        """Ask `admin`, whose timeout limits the wait."""
        self._admin = admin

    def page(self) -> str:
        """Return the figures in Prometheus' text format. Raises AdminError if Envoy does not send them in time."""
        try:
            page = self._admin.statistics(_STATISTICS)
        except (OSError, HTTPException) as error:
            raise AdminError(f"Envoy's admin interface does not respond: {error}") from error
        return "".join(f"{line}\n" for line in _chosen(page))


def _chosen(page: str) -> Iterator[str]:
    """Yield the lines of the figures: nothing else that Envoy may send can collide with other metrics of the page."""
    kinds = {figure.name: figure.kind for figure in FIGURES}
    is_chosen = False
    # Label values may contain other line separators, so `splitlines` would not do.
    for line in page.split("\n"):
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            is_chosen = kinds.get(name) == kind
        if is_chosen and line:
            # Prometheus itself writes no empty labels.
            yield line.replace("{} ", " ", 1)
