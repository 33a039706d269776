"""Envoy's bootstrap configuration as plain data: one listener with its addresses, limits and application."""

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tpuserve_server.hosts.application import MEBIBYTE, HostOptions
from tpuserve_server.hosts.envoy.arrival import arrival_filter
from tpuserve_server.hosts.envoy.client_certificate import certificate_filter
from tpuserve_server.hosts.envoy.overload import overload_manager, rate_limit
from tpuserve_server.hosts.envoy.paths import path_filter
from tpuserve_server.hosts.envoy.replies import local_replies
from tpuserve_server.hosts.envoy.secret_files import SecretFiles
from tpuserve_server.hosts.envoy.shedding_filters import shedding_filters
from tpuserve_server.hosts.envoy.tracing import clusters, runtime_layers, span_filter, tracing
from tpuserve_server.hosts.envoy.unsent import BUFFER_BYTES
from tpuserve_server.hosts.grpc.arguments import apply_to_manager
from tpuserve_server.hosts.limits import IDLE_CONNECTION_S, MAX_HEADERS_COUNT, REQUEST_TIMEOUT_S, UNSENT_BYTES
from tpuserve_server.hosts.tls import TlsOptions

Config: TypeAlias = dict[str, Any]  # JSON; Envoy checks it against its own schema.

# Prefix of the listener's statistics, such as http.tpuserve.downstream_rq_active.
STAT_PREFIX = "tpuserve"
# Time for HTTP/2 clients to begin streams after the first GOAWAY: longer than any network round trip.
DRAIN_GRACE_S = 1

# A client process usually shares one connection among all its calls. Beyond this limit, its library makes calls wait.
# Load generators and proxies use hundreds of streams, so the limit of Envoy's edge profile (100) would slow them. The
# limit bounds the memory of one connection: streams times the size of a message.
MAX_STREAMS_PER_CONNECTION = 1024
# Streams of a connection that its client may reset at once, and each second from then on. A client resets a call whose
# deadline passes, and the clients of a shared connection reset many: all streams twice. Beyond both, Envoy closes the
# connection with all its calls. The server takes about 0.1 ms for a stream that was reset, so an attack over one
# connection delays other clients by a few tenths of a second, and then takes a fifth of the event loop.
RESET_STREAMS = 2 * MAX_STREAMS_PER_CONNECTION
RESET_STREAMS_PER_S = 2048
_RUNTIME = {
    # Envoy's other guard would close a connection whose calls mostly end early, at any rate: it counts since the start
    # of the connection (downstream_rq_too_many_premature_resets). More streams than any connection has.
    "overload.premature_reset_total_stream_count": 10**9,
    # By default, Envoy accepts a bare LF after a chunk, and ignores bytes between a chunk and its end.
    "envoy.reloadable_features.strict_chunk_parsing": True,
}
# Envoy's limits on headers. A header field over the second one ends the HTTP/2 connection, because HPACK's state is
# lost, and other calls share the connection. Both are therefore above the application's limit (header_limit.py), which
# refuses only the call. Envoy allows no larger field, and requires the first one to be as large.
MAX_HEADERS_KIB = 256
MAX_HEADER_FIELD_KIB = 256
# Free memory that Envoy returns to the system at each interval, at most.
RELEASED_BYTES = 128 * MEBIBYTE
RELEASE_INTERVAL_S = 1

_ENVOY = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True)
class Embedding:
    """The code that Envoy loads: the embedding's shared library, and the ASGI application as `module:attribute`."""

    library: Path
    asgi_entry: str


def bootstrap(options: HostOptions, embedding: Embedding, admin_socket: Path) -> Config:
    """Return the whole configuration. Only this user can open the UNIX socket of the admin interface.

    The files of the certificates are in the same directory.
    """
    secrets = SecretFiles(admin_socket.parent)
    return {
        # Envoy requires a node for secrets that it reads from files.
        "node": {"id": "tpuserve", "cluster": "tpuserve"},
        "admin": {"address": {"pipe": {"path": str(admin_socket), "mode": 0o600}}},
        "static_resources": {
            "listeners": [_listener(options, embedding, secrets)],
            **clusters(options.envoy_spans),
        },
        # The worker sets values over the admin interface.
        "layered_runtime": {
            "layers": [
                {"name": "tpuserve", "static_layer": _RUNTIME},
                *runtime_layers(options.envoy_spans),
                {"name": "admin", "admin_layer": {}},
            ]
        },
        "overload_manager": overload_manager(options),
        # Otherwise Envoy's allocator keeps freed memory for ever, such as that of uploads that ended.
        "memory_allocator_manager": {
            "bytes_to_release": RELEASED_BYTES,
            "memory_release_interval": f"{RELEASE_INTERVAL_S}s",
        },
    }


def _listener(options: HostOptions, embedding: Embedding, secrets: SecretFiles) -> Config:
    """Return one listener for all addresses. Each further filter chain would load the application again."""
    first, *others = [{"address": address, **_unsent(address)} for address in addresses(options).values()]
    return {
        "name": "tpuserve",
        "address": first["address"],
        "socket_options": first["socket_options"]["socket_options"],
        "additional_addresses": others,
        # By default, a second server on the same port must fail instead of taking every other connection.
        "enable_reuse_port": options.reuse_port,
        # The buffer of responses; that of a request's body is below.
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [
            {"filters": [_http(options, embedding)], **_transport(options.tls, secrets, options.header_timeout_s)}
        ],
    }


def _unsent(address: Config) -> Config:
    """Return the socket's option by which Envoy sees that a slow client reads. Linux only."""
    if "socket_address" not in address or sys.platform != "linux":
        return {"socket_options": {"socket_options": []}}
    option = {"level": socket.IPPROTO_TCP, "name": socket.TCP_NOTSENT_LOWAT, "int_value": UNSENT_BYTES}
    return {"socket_options": {"socket_options": [{**option, "state": "STATE_PREBIND"}]}}


def addresses(options: HostOptions) -> Mapping[str, Config]:
    """Return Envoy's form of the addresses, in the listener's order, by their field of `Listening`."""
    wanted = {
        "grpc": _tcp(options.bind_address, options.grpc_port),
        "rest": None if options.rest_server == "python" else _tcp(options.bind_address, options.rest_port),
        "grpc_socket": _unix(options.grpc_socket_path),
    }
    return {name: address for name, address in wanted.items() if address is not None}


def _tcp(host: str, port: int | None) -> Config | None:
    if port is None:
        return None
    # "::" accepts IPv4 connections, too, as in Python's servers and Linux.
    dual_stack = {"ipv4_compat": True} if host == "::" else {}
    return {"socket_address": {"address": host, "port_value": port, **dual_stack}}


def _unix(path: str | None) -> Config | None:
    return None if path is None else {"pipe": {"path": path}}


def _transport(tls: TlsOptions | None, secrets: SecretFiles, timeout_s: float) -> Config:
    """Return the TLS part of the filter chain. It contains no key. A handshake may take `timeout_s`."""
    if tls is None:
        return {}
    common: Config = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": ["h2", "http/1.1"],
        **secrets.context(has_client_ca=tls.client_ca is not None),
    }
    context = {
        "@type": f"{_ENVOY}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": tls.client_ca is not None,
    }
    return {
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
        "transport_socket_connect_timeout": f"{timeout_s:g}s",
    }


def _http(options: HostOptions, embedding: Embedding) -> Config:
    """Return the filter for HTTP/1.1 and HTTP/2, which ALPN or the first bytes distinguish.

    It has no access log and no request ids, and tracing only with `envoy_spans`.
    """
    manager: Config = {
        "@type": f"{_ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": STAT_PREFIX,
        "codec_type": "AUTO",
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        # Without it, Envoy takes the address of a client from x-forwarded-for, which any client can send.
        "use_remote_address": True,
        "skip_xff_append": True,
        "max_request_headers_kb": MAX_HEADERS_KIB,
        "request_headers_timeout": f"{options.header_timeout_s:g}s",
        "request_timeout": f"{REQUEST_TIMEOUT_S}s",
        "stream_idle_timeout": "0s",
        # Applies to the last bytes of a complete response.
        "stream_flush_timeout": f"{options.write_timeout_s:g}s",
        "drain_timeout": f"{DRAIN_GRACE_S}s",
        "common_http_protocol_options": {
            "idle_timeout": f"{IDLE_CONNECTION_S}s",
            "max_headers_count": MAX_HEADERS_COUNT,
        },
        # Health checks of some load balancers still use HTTP/1.0.
        "http_protocol_options": {
            "accept_http_10": True,
            "default_host_for_http_10": "localhost",
            # The server supports no upgrades. If Envoy honored one, the request's body would have no end.
            "ignore_http_11_upgrade": [{"safe_regex": {"regex": ".*"}}],
        },
        "http2_protocol_options": {
            "max_concurrent_streams": MAX_STREAMS_PER_CONNECTION,
            "initial_stream_window_size": BUFFER_BYTES,
            "max_header_field_size_kb": MAX_HEADER_FIELD_KIB,
            "stream_reset_burst": RESET_STREAMS,
            "stream_reset_rate": RESET_STREAMS_PER_S,
        },
        # The embedding answers every request, so there are no routes and no route timeouts.
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "tpuserve",
                    "domains": ["*"],
                    # Envoy buffers a body while the event loop is busy, and answers 413 to a body that does not fit.
                    # The buffer is larger than the application's limits, so that those apply first.
                    "request_body_buffer_limit": max(options.max_message_bytes, options.max_body_bytes) + MEBIBYTE,
                }
            ]
        },
        "http_filters": [
            *rate_limit(options),
            *shedding_filters(),
            path_filter(),
            arrival_filter(),
            *([certificate_filter()] if options.tls is not None and options.tls.client_ca is not None else []),
            *span_filter(options.envoy_spans),
            _embedded(embedding),
        ],
        "local_reply_config": local_replies(),
        **tracing(options.envoy_spans),
    }
    apply_to_manager(options.grpc_arguments, manager)
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}


def _embedded(embedding: Embedding) -> Config:
    application = {
        "app": embedding.asgi_entry,
        "interface": "asgi",
        "root_path": "",
        "loop": "uvloop",
        "lifespan": True,
        "worker_threads": 1,
    }
    return {
        "name": "pyvoy",
        "typed_config": {
            "@type": f"{_ENVOY}.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": {"module": {"local": {"filename": str(embedding.library)}}},
            "filter_name": "pyvoy",
            "terminal_filter": True,
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": json.dumps(application),
            },
        },
    }
