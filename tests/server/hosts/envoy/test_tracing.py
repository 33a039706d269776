"""Tests for Envoy's own spans: a real Envoy, and a real receiver over HTTP and gRPC, with and without TLS."""

import dataclasses
import http.client
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from tests.server.hosts.plain_envoy import plain_envoy
from tests.support.certificates import Authority, ServerTls
from tests.support.otlp_receiver import Receiver, attributes_of, grpc_receiver, http_receiver
from tpuserve_server.hosts.application import EnvoySpans, HostOptions
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.tracing import clusters, runtime_layers, span_filter, tracing
from tpuserve_server.telemetry.trace_context import ENVOY_SPAN_HEADER
from tpuserve_server.telemetry.tracing.sampler import envoy_samples
from tpuserve_server.telemetry.tracing.target import find_target

OPTIONS = HostOptions(bind_address="127.0.0.1", grpc_port=None, rest_port=0)
PARENT = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
# Shows what the application would get.
SHOW = {
    "name": "show",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {
            "response_mutations": [
                {"append": {"header": {"key": name, "value": f"%REQ({name})%"}}}
                for name in (ENVOY_SPAN_HEADER, "x-request-id")
            ]
        },
    },
}


@asynccontextmanager
async def envoy_to(receiver: Receiver, folder: Path, ratio: float, **variables: str) -> AsyncIterator[EnvoyAdmin]:
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    spans = EnvoySpans(find_target(receiver.url, environment), "mine", ratio)
    with plain_envoy(dataclasses.replace(OPTIONS, envoy_spans=spans), folder, [*span_filter(spans), SHOW]) as path:
        admin = EnvoyAdmin(path)
        await until(admin.is_live)
        yield admin


def ask(admin: EnvoyAdmin, headers: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the header with Envoy's span, and the identifier of the request, as the application gets them."""
    address = admin.listening(OPTIONS).rest
    assert address is not None
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request("POST", "/v1/models/m:predict", b"", headers)
        shown = connection.getresponse().headers
        return shown[ENVOY_SPAN_HEADER], shown["x-request-id"]


async def test_envoy_samples_as_the_application_expects(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        async with envoy_to(receiver, tmp_path, 0.5) as admin:
            traces = [ask(admin, {})[0].partition("-")[0] for _ in range(60)]
            expected = {trace for trace in traces if envoy_samples(trace, 0.5)}
            assert 0 < len(expected) < 60
            spans = receiver.wait_for(lambda spans: len(spans) >= len(expected))
    assert {span.trace_id.hex() for span in spans} == expected


async def test_the_client_decides_before_the_ratio(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        async with envoy_to(receiver, tmp_path, 0.0) as admin:
            ask(admin, {})
            ask(admin, {"traceparent": f"00-{PARENT}-00"})
            header, request_id = ask(
                admin, {"traceparent": f"00-{PARENT}-01", ENVOY_SPAN_HEADER: "forged", "x-request-id": "mine"}
            )
            [span] = receiver.wait_for(bool)
    assert header == f"{span.trace_id.hex()}-{span.span_id.hex()}"
    assert f"{span.trace_id.hex()}-{span.parent_span_id.hex()}" == PARENT
    # Envoy would otherwise change the identifier, because it decides by it.
    assert request_id == "mine"


async def test_envoy_has_no_span_for_a_header_that_is_garbage(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        async with envoy_to(receiver, tmp_path, 1.0) as admin:
            assert ask(admin, {"traceparent": "garbage", ENVOY_SPAN_HEADER: PARENT})[0] == "-"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_envoy_uses_the_certificates_and_headers(tmp_path: Path, protocol: str) -> None:
    authority = Authority(tmp_path)
    mine, tls = authority.issue("server@example.org"), ServerTls(authority.server, authority.ca)
    variables = {
        "CERTIFICATE": str(authority.ca),
        "CLIENT_CERTIFICATE": str(mine.cert),
        "CLIENT_KEY": str(mine.key),
        "HEADERS": "x-tenant=a",
        "PROTOCOL": protocol,
    }
    with http_receiver(tls=tls) if protocol != "grpc" else grpc_receiver(tls) as receiver:
        async with envoy_to(receiver, tmp_path, 1.0, **variables) as admin:
            ask(admin, {})
            receiver.wait_for(bool)
    assert receiver.headers[0]["x-tenant"] == "a"
    resource = attributes_of(receiver.requests[0].resource_spans[0].resource.attributes)
    assert resource["service.name"] == "mine"


def test_without_spans_there_is_no_trace_of_them() -> None:
    empty: Any = {}
    assert (tracing(None), clusters(None)) == (empty, empty)
    assert (span_filter(None), runtime_layers(None)) == ([], [])
