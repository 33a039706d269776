"""Tests for the receiver that the endpoint and OpenTelemetry's variables name."""

import pytest

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.observe.tracing.options import TracingOptions, find_target


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "path"),
    [
        ("http://collector:4318", "collector", 4318, "/v1/traces"),
        ("http://collector:4318/", "collector", 4318, "/v1/traces"),
        ("https://collector/otlp", "collector", 443, "/otlp/v1/traces"),
        ("http://[::1]/v1/traces", "::1", 80, "/v1/traces"),
        ("http://collector/?tenant=a", "collector", 80, "/v1/traces?tenant=a"),
    ],
)
def test_the_endpoint_is_a_base_url(endpoint: str, host: str, port: int, path: str) -> None:
    target = find_target(endpoint, {})
    assert (target.host, target.port, target.path) == (host, port, path)
    assert target.is_tls is endpoint.startswith("https")
    assert (target.is_grpc, target.is_compressed, target.headers, target.timeout_s) == (False, False, (), 10.0)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://c:0",
        "http://c:x",
        "http://me:pw@c",
        "//me:pw@c",
        "http://me:p/pw@c",
    ],
)
def test_another_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="trace_endpoint must be a URL such as") as raised:
        TracingOptions(endpoint)
    assert "pw" not in raised.value.message


def test_variables_of_opentelemetry_apply_and_those_of_traces_first() -> None:
    target = find_target(
        "https://collector",
        {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20abc, x-tenant = b",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "client.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "client.key",
        },
    )
    assert (target.is_grpc, target.is_compressed, target.timeout_s) == (True, True, 2.5)
    assert target.headers == (("authorization", "Bearer abc"), ("x-tenant", "b"))
    assert (target.ca_file, target.certificate_file, target.key_file) == ("ca.pem", "client.pem", "client.key")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PROTOCOL", "http/json", "PROTOCOL must be http/protobuf or grpc; was 'http/json'"),
        ("COMPRESSION", "br", "COMPRESSION must be none or gzip; was 'br'"),
        ("TIMEOUT", "10s", "TIMEOUT must be milliseconds, from 1 to 60000; was '10s'"),
        ("TIMEOUT", "inf", "TIMEOUT must be milliseconds"),
        ("TIMEOUT", "0", "TIMEOUT must be milliseconds"),
        ("TIMEOUT", "0.01", "TIMEOUT must be milliseconds, from 1"),
        ("HEADERS", "secret", "HEADERS must be name=value,name=value in ASCII; was wrong at 'secret'"),
        ("HEADERS", "a=b%0d%0ac:d", "HEADERS must be name=value,name=value in ASCII; was wrong at 'a'"),
        ("HEADERS", "=c", "HEADERS must be name=value,name=value in ASCII; was wrong at ''"),
        ("HEADERS", "a:b=c", "HEADERS must be name=value,name=value in ASCII; was wrong at 'a:b'"),
        ("HEADERS", "a b=c", "HEADERS must be name=value,name=value in ASCII; was wrong at 'a b'"),
    ],
)
def test_wrong_values_of_variables_are_named(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        find_target("http://collector", {f"OTEL_EXPORTER_OTLP_{name}": value})
