"""Envoy's own spans: one for each sampled request, as the parent of the server's span (decision 59).

Envoy passes its span on only in its router filter, which this server has not. A header has the identifiers instead.
"""

import ipaddress
import ssl
from typing import Any, Final

from tpuserve_server.hosts.application import EnvoySpans
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.telemetry.trace_context import ENVOY_SPAN_HEADER
from tpuserve_server.telemetry.tracing.sampler import envoy_share
from tpuserve_server.telemetry.tracing.target import OtlpTarget

Config = dict[str, Any]

_CLUSTER: Final = "traces"
_CONNECT_TIMEOUT: Final = "3s"
_FLUSH_INTERVAL_MS: Final = 1000
_SPANS_OF_FLUSH: Final = 256
_TYPES: Final = "type.googleapis.com/envoy"
_SAMPLERS: Final = f"{_TYPES}.extensions.tracers.opentelemetry.samplers.v3"


def tracing(spans: EnvoySpans | None) -> Config:
    """Return the part of the connection manager that makes and samples spans, as the application does."""
    if spans is None:
        return {}
    ratio = _extension(
        "trace_id_ratio_based",
        "TraceIdRatioBasedSamplerConfig",
        sampling_percentage={"numerator": envoy_share(spans.sample_ratio), "denominator": "MILLION"},
    )
    provider = {
        "@type": f"{_TYPES}.config.trace.v3.OpenTelemetryConfig",
        "service_name": spans.service_name,
        "sampler": _extension("parent_based", "ParentBasedSamplerConfig", wrapped_sampler=ratio),
        **_service(spans.target),
    }
    return {
        "tracing": {"provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider}},
        # By default, the identifier of the request decides, which a client may have chosen, and Envoy changes it.
        "request_id_extension": {
            "typed_config": {
                "@type": f"{_TYPES}.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
                "use_request_id_for_trace_sampling": False,
            }
        },
    }


def span_filter(spans: EnvoySpans | None) -> list[Config]:
    """Return the HTTP filter that sets the header to the identifiers of Envoy's span, and replaces a client's header.

    Without Envoy's spans there is no filter: the application then ignores the header.
    """
    if spans is None:
        return []
    header = {"key": ENVOY_SPAN_HEADER, "value": "%TRACE_ID%-%SPAN_ID%"}
    mutation = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    return [
        {
            "name": "tpuserve.span",
            "typed_config": {
                "@type": f"{_TYPES}.extensions.filters.http.header_mutation.v3.HeaderMutation",
                "mutations": {"request_mutations": [mutation]},
            },
        }
    ]


def runtime_layers(spans: EnvoySpans | None) -> list[Config]:
    """Return the settings of the export, which only the runtime has. By default, each five spans are a request."""
    if spans is None:
        return []
    settings = {"flush_interval_ms": _FLUSH_INTERVAL_MS, "min_flush_spans": _SPANS_OF_FLUSH}
    values = {f"tracing.opentelemetry.{name}": value for name, value in settings.items()}
    return [{"name": "traces", "static_layer": values}]


def clusters(spans: EnvoySpans | None) -> Config:
    """Return the receiver of the spans as a cluster. Raises HostError if TLS has no certificate authorities."""
    if spans is None:
        return {}
    target = spans.target
    address = {"socket_address": {"address": target.host, "port_value": target.port}}
    cluster: Config = {
        "name": _CLUSTER,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": _CONNECT_TIMEOUT,
        "load_assignment": {
            "cluster_name": _CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        **_transport(target),
    }
    if target.is_grpc:
        protocol = f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions"
        cluster["typed_extension_protocol_options"] = {
            protocol.rpartition("/")[2]: {
                "@type": protocol,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return {"clusters": [cluster]}


def _service(target: OtlpTarget) -> Config:
    timeout = f"{target.timeout_s:g}s"
    headers = [{"key": name, "value": value} for name, value in target.headers]
    if target.is_grpc:
        call = {"envoy_grpc": {"cluster_name": _CLUSTER}, "timeout": timeout, "initial_metadata": headers}
        return {"grpc_service": call}
    scheme = "https" if target.is_tls else "http"
    host = f"[{target.host}]" if ":" in target.host else target.host
    return {
        "http_service": {
            "http_uri": {
                "uri": f"{scheme}://{host}:{target.port}{target.path}",
                "cluster": _CLUSTER,
                "timeout": timeout,
            },
            "request_headers_to_add": [{"header": header} for header in headers],
        }
    }


def _transport(target: OtlpTarget) -> Config:
    if not target.is_tls:
        return {}
    authorities = target.ca_file or ssl.get_default_verify_paths().cafile
    if authorities is None:
        raise HostError("trace_envoy finds no certificate authorities. Set OTEL_EXPORTER_OTLP_CERTIFICATE to a file.")
    is_address = _is_address(target.host)
    name = {"san_type": "IP_ADDRESS" if is_address else "DNS", "matcher": {"exact": target.host}}
    common: Config = {
        "validation_context": {"trusted_ca": {"filename": authorities}, "match_typed_subject_alt_names": [name]}
    }
    if target.certificate_file is not None:
        key = target.key_file or target.certificate_file
        pair = {"certificate_chain": {"filename": target.certificate_file}, "private_key": {"filename": key}}
        common["tls_certificates"] = [pair]
    context = {
        "@type": f"{_TYPES}.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": common,
        # An address is no server name (RFC 6066, section 3).
        **({} if is_address else {"sni": target.host}),
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _extension(name: str, kind: str, **fields: object) -> Config:
    config = {"@type": f"{_SAMPLERS}.{kind}", **fields}
    return {"name": f"envoy.tracers.opentelemetry.samplers.{name}", "typed_config": config}
