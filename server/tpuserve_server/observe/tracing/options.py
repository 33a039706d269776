"""TracingOptions and the receiver that they name. Light, because the command line imports it."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Final, get_args
from urllib.parse import SplitResult, unquote, urlsplit

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.core.terms.storage import without_secrets


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """Receiver of the spans, and the choice of requests. Without an endpoint, the server traces no requests.

    Raises:
        InvalidArgument: the endpoint or a variable of OpenTelemetry cannot be used, or options conflict.
    """

    endpoint: Annotated[
        str | None,
        Setting(
            "Operations",
            "Base URL of an OTLP receiver for traces of requests, such as http://collector:4318.",
            name="trace_endpoint",
            shown_default="none",
        ),
    ] = None
    sample_ratio: Annotated[
        float,
        Setting(
            "Operations",
            "Share of the requests to trace. A trace context of the client decides instead.",
            name="trace_sample_ratio",
            at_least=0,
            at_most=1,
        ),
    ] = 0.01
    slow_ms: Annotated[
        float,
        Setting(
            "Operations",
            "Latency in milliseconds from which a request is always traced; 0: never.",
            name="trace_slow_ms",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 1000.0
    max_per_s: Annotated[
        float,
        Setting(
            "Operations",
            "Maximum rate of traced requests, after a burst of one second. The server counts the others.",
            name="trace_max_per_second",
            at_least=1,
            at_most=1e6,
        ),
    ] = 200.0

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            find_target(self.endpoint, os.environ)
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                name = get_args(field.type)[1].name
                raise InvalidArgument(
                    f"{name} is set without trace_endpoint, so the server would trace no requests: add "
                    "--trace_endpoint with the base URL of an OTLP receiver"
                )


PATH: Final = "/v1/traces"
_PREFIXES: Final = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")
_PORTS: Final = {"http": 80, "https": 443}
_DEFAULT_TIMEOUT_MS: Final = "10000"
# No receiver answers sooner, so a shorter time is a mistake.
_LEAST_TIMEOUT_MS: Final = 1.0
_MOST_TIMEOUT_MS: Final = 60_000.0
# Names of headers that gRPC accepts, too (doc/PROTOCOL-HTTP2.md).
_HEADER_NAME: Final = re.compile(r"[0-9a-z_.-]+")


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Receiver of OTLP. `path` is for HTTP. Files are PEM, and None for the system's authorities or no client key."""

    # The URL without a user's name and password, for messages.
    url: str
    host: str
    port: int
    path: str
    is_tls: bool
    is_grpc: bool
    headers: tuple[tuple[str, str], ...]
    timeout_s: float
    is_compressed: bool
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


def find_target(endpoint: str, environment: Mapping[str, str]) -> OtlpTarget:
    """Return the receiver at a base URL. A URL that ends with PATH is used unchanged.

    Raises:
        InvalidArgument: the URL is none of HTTP, or a variable has an unknown value.
    """
    url = _split(endpoint)

    def read(name: str, default: str = "") -> str:
        return next(filter(None, (environment.get(f"{prefix}{name}", "").strip() for prefix in _PREFIXES)), default)

    path = url.path if url.path.endswith(PATH) else f"{url.path.rstrip('/')}{PATH}"
    host = url.hostname or ""
    port = url.port or _PORTS[url.scheme]
    return OtlpTarget(
        url=f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}{url.path}",
        host=host,
        port=port,
        path=f"{path}?{url.query}" if url.query else path,
        is_tls=url.scheme == "https",
        is_grpc=_choice(read, "PROTOCOL", {"http/protobuf": False, "grpc": True}),
        headers=_headers(read("HEADERS")),
        timeout_s=_timeout_s(read("TIMEOUT", _DEFAULT_TIMEOUT_MS)),
        is_compressed=_choice(read, "COMPRESSION", {"none": False, "gzip": True}),
        ca_file=read("CERTIFICATE") or None,
        certificate_file=read("CLIENT_CERTIFICATE") or None,
        key_file=read("CLIENT_KEY") or None,
    )


def _split(endpoint: str) -> SplitResult:
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in _PORTS and bool(url.hostname) and url.port != 0 and url.username is None
    except ValueError:  # An invalid port or address.
        is_valid = False
    if not is_valid:
        raise InvalidArgument(
            "trace_endpoint must be a URL such as http://collector:4318, without a user's name; was "
            f"{without_secrets(endpoint)!r}"
        )
    return url


def _choice(read: Callable[[str], str], name: str, meanings: Mapping[str, bool]) -> bool:
    """Return the meaning of a variable. The first one is the default."""
    value = read(name) or next(iter(meanings))
    if value not in meanings:
        raise InvalidArgument(f"{_PREFIXES[-1]}{name} must be {' or '.join(meanings)}; was {value!r}")
    return meanings[value]


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of `name=value,name=value`. Values are percent-encoded, as in W3C Baggage."""
    headers = []
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        name, equals, value = entry.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        # A value may be a secret, so the message has the name only.
        if not equals or not _HEADER_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise InvalidArgument(
                f"{_PREFIXES[-1]}HEADERS must be name=value,name=value in ASCII; was wrong at {name!r}"
            )
        headers.append((name, value))
    return tuple(headers)


def _timeout_s(text: str) -> float:
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not _LEAST_TIMEOUT_MS <= milliseconds <= _MOST_TIMEOUT_MS:
        raise InvalidArgument(
            f"{_PREFIXES[-1]}TIMEOUT must be milliseconds, from {_LEAST_TIMEOUT_MS:.0f} to {_MOST_TIMEOUT_MS:.0f}; was "
            f"{text!r}"
        )
    return milliseconds / 1000
