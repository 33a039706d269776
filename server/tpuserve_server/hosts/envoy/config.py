"""Envoy's bootstrap configuration as plain data: one listener, its addresses and limits, the application behind it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tpuserve_server.hosts.application import MEBIBYTE, HostOptions
from tpuserve_server.hosts.envoy.paths import path_filter
from tpuserve_server.hosts.envoy.replies import local_replies
from tpuserve_server.hosts.grpc.arguments import apply_to_manager
from tpuserve_server.hosts.tls import TlsOptions

Config: TypeAlias = dict[str, Any]  # JSON; Envoy checks it against its own schema.

# Name of the listener's statistics: http.tpuserve.downstream_rq_active and so on.
STAT_PREFIX = "tpuserve"
# How long an HTTP/2 client may still begin streams after it was told to go: longer than any way there and back.
FAREWELL_S = 1

# One client process shares one connection among all its calls; past this many its library makes calls wait. Load
# generators and proxies run to hundreds, and Envoy's edge profile (100) would be felt by them. It bounds what one
# connection can hold of our memory: streams times a message.
MAX_STREAMS_PER_CONNECTION = 1024
# Refused beyond this, before any of their bytes are read. A file descriptor and some 30 KB each.
MAX_CONNECTIONS = 10_000
# Metadata is small; what is longer gets 431.
MAX_HEADERS_KIB = 60
MAX_HEADERS_COUNT = 100
# A client that trickles its handshake, its headers or its body is cut off; the body's limit leaves 64 MiB on a slow
# line alone. None bounds the answer: a health watch stays open, and a first call may wait for a compilation.
HANDSHAKE_TIMEOUT_S = 10
HEADERS_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 300
# A connection without any request. Clients should be the ones to close: a request may be on its way when we do.
IDLE_CONNECTION_S = 3600

_ENVOY = "type.googleapis.com/envoy.extensions"


@dataclass(frozen=True, slots=True)
class Embedding:
    """What Envoy loads: the embedding's shared library and, as `module:attribute`, the ASGI application."""

    library: Path
    asgi_entry: str


def bootstrap(options: HostOptions, embedding: Embedding, admin_socket: Path) -> Config:
    """The whole configuration. Pure. The admin interface is on a UNIX socket that only this user can open."""
    return {
        "admin": {"address": {"pipe": {"path": str(admin_socket), "mode": 0o600}}},
        "static_resources": {"listeners": [_listener(options, embedding)]},
        "overload_manager": {"resource_monitors": [_connection_limit()]},
    }


def _listener(options: HostOptions, embedding: Embedding) -> Config:
    """One listener for every address: each filter chain would load the application once more, with its own loop."""
    first, *others = addresses(options).values()
    return {
        "name": "tpuserve",
        "address": first,
        "additional_addresses": [{"address": address} for address in others],
        # A second server on our port must fail, not take every other connection.
        "enable_reuse_port": False,
        # A body waits here while the event loop is busy, and one that does not fit is answered 413 by Envoy itself. The
        # application's own limits must be the ones that are met first.
        "per_connection_buffer_limit_bytes": max(options.max_message_bytes, options.max_body_bytes) + MEBIBYTE,
        "filter_chains": [{"filters": [_http(options, embedding)], **_transport(options.tls)}],
    }


def addresses(options: HostOptions) -> Mapping[str, Config]:
    """Envoy's form of the addresses, in the listener's order, by the field of `Listening` that each fills."""
    wanted = {
        "grpc": _tcp(options.bind_address, options.grpc_port),
        "rest": _tcp(options.bind_address, options.rest_port),
        "grpc_socket": _unix(options.grpc_socket_path),
    }
    return {name: address for name, address in wanted.items() if address is not None}


def _tcp(host: str, port: int | None) -> Config | None:
    if port is None:
        return None
    # As Python's servers and Linux have it, "::" takes IPv4, too.
    dual_stack = {"ipv4_compat": True} if host == "::" else {}
    return {"socket_address": {"address": host, "port_value": port, **dual_stack}}


def _unix(path: str | None) -> Config | None:
    return None if path is None else {"pipe": {"path": path}}


def _transport(tls: TlsOptions | None) -> Config:
    """The filter chain's own part of TLS. Keys stand in the text: the file is for its user alone and soon gone."""
    if tls is None:
        return {}
    common: Config = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [
            {
                "certificate_chain": {"inline_string": tls.certificate_chain},
                "private_key": {"inline_string": tls.private_key},
            }
        ],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"inline_string": tls.client_ca}}
    context = {
        "@type": f"{_ENVOY}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": tls.client_ca is not None,
    }
    return {
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
        "transport_socket_connect_timeout": f"{HANDSHAKE_TIMEOUT_S}s",
    }


def _http(options: HostOptions, embedding: Embedding) -> Config:
    """HTTP/1.1 and HTTP/2, told apart by ALPN or their first bytes. No access log, no request ids, no tracing."""
    manager: Config = {
        "@type": f"{_ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": STAT_PREFIX,
        "codec_type": "AUTO",
        "generate_request_id": False,
        "server_header_transformation": "PASS_THROUGH",
        "skip_xff_append": True,
        "max_request_headers_kb": MAX_HEADERS_KIB,
        "request_headers_timeout": f"{HEADERS_TIMEOUT_S}s",
        "request_timeout": f"{REQUEST_TIMEOUT_S}s",
        "stream_idle_timeout": "0s",
        "drain_timeout": f"{FAREWELL_S}s",
        "common_http_protocol_options": {
            "idle_timeout": f"{IDLE_CONNECTION_S}s",
            "max_headers_count": MAX_HEADERS_COUNT,
        },
        # Some load balancers' health checks still speak 1.0.
        "http_protocol_options": {
            "accept_http_10": True,
            "default_host_for_http_10": "localhost",
            # Nothing else is spoken. Taken seriously, an offer to change has a body without an end.
            "ignore_http_11_upgrade": [{"safe_regex": {"regex": ".*"}}],
        },
        "http2_protocol_options": {"max_concurrent_streams": MAX_STREAMS_PER_CONNECTION},
        # The embedding answers everything: no routes, and so no route's timeout.
        "route_config": {"virtual_hosts": [{"name": "tpuserve", "domains": ["*"]}]},
        "http_filters": [path_filter(), _embedded(embedding)],
        "local_reply_config": local_replies(),
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


def _connection_limit() -> Config:
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": f"{_ENVOY}.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": MAX_CONNECTIONS,
        },
    }
