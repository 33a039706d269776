"""The part that `Client` and `AsyncClient` share: settings, the state of a process, and the options of a call."""

import enum
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from tpuserve_client.address import Address
from tpuserve_client.attempts import Attempts, Call
from tpuserve_client.credentials import has_credentials
from tpuserve_client.endpoint import Endpoint, Endpoints
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import AsyncTransport, Transport, Wire
from tpuserve_client.fork import survive_forks
from tpuserve_client.limits import checked_timeout
from tpuserve_client.model import ModelSpec
from tpuserve_client.names import shown
from tpuserve_client.operations import Operations
from tpuserve_client.request_headers import HOST, HeaderSource, HeaderValue, split_headers
from tpuserve_client.retry import Retry, RetryBudget
from tpuserve_client.settings import Settings, Timing
from tpuserve_client.tls import Tls

if TYPE_CHECKING:
    from tpuserve_client.async_connections import AsyncConnections
    from tpuserve_client.connections import Connections


class _Own(enum.Enum):
    """Default of a call's timeout that selects the client's own timeout. None already means "no deadline"."""

    TIMEOUT = enum.auto()

    def __repr__(self) -> str:
        return "the client's timeout"


OWN_TIMEOUT = _Own.TIMEOUT
_HTTPX_COMMAND = "httpx._main"
Timeout: TypeAlias = float | _Own | None


class ClientCore:
    """Settings of a client and the state built from them, which belongs to one process.

    Pickling a client keeps its settings. The copy connects by itself.
    """

    _settings: Settings
    _timing: Timing
    _connections: "Connections | AsyncConnections"
    _operations: Operations

    def __init__(self, settings: Settings, timing: Timing) -> None:
        self._settings = settings
        self._timing = timing
        self._places = settings.places
        self._headers, self._sources = split_headers(settings.sent_headers)
        has_certificate = settings.tls is not None and settings.tls.cert is not None
        self._has_credentials = has_certificate or has_credentials({**self._headers, **self._sources})
        _import_library(self._places[0])
        self._renew()
        survive_forks(self)

    def __getstate__(self) -> Settings:
        return self._settings

    def __setstate__(self, settings: Settings) -> None:
        type(self).__init__(self, **settings.arguments())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(place.target for place in self._places)})"

    def _renew(self) -> object:
        """Build the state of this process. Return the old state."""
        settings, timing = self._settings, self._timing
        old = getattr(self, "_connections", None)
        endpoints = Endpoints(self._places, resolve_all=settings.resolve_all, clock=timing.clock)
        budget = RetryBudget(settings.retry)
        attempts = Attempts(endpoints, budget, timing.clock, timing.jitter, settings.on_attempt)
        self._operations = Operations(self._make_wire(self._places[0]), attempts, timing)
        self._connections = self._make_connections()
        return old

    def _release(self) -> bool:
        """Drop connections that must not exist when the process forks. Return whether there were any."""
        return False

    def _make_connections(self) -> "Connections | AsyncConnections":
        raise NotImplementedError

    def _make_wire(self, place: Address) -> Wire:
        return _wire(place)

    def _call(
        self,
        spec: ModelSpec | None,
        timeout_s: Timeout,
        headers: Mapping[str, HeaderValue] | None = None,
        retry: Retry | None = None,
    ) -> Call:
        """Return the call's options. Raises InvalidArgument for those that cannot be used."""
        own, sources = self._call_headers(headers)
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidArgument(f"retry must be a Retry, not {shown(retry)}.")
        return Call(
            spec=spec,
            address=self._places[0].target,
            retry=retry or self._settings.retry,
            began_s=self._timing.clock(),
            limit_s=self._settings.timeout_s if isinstance(timeout_s, _Own) else checked_timeout(timeout_s),
            headers=own,
            sources=sources,
            has_credentials=self._has_credentials or (bool(headers) and has_credentials({**own, **sources})),
        )

    def _call_headers(
        self, headers: Mapping[str, HeaderValue] | None
    ) -> tuple[Mapping[str, str], Mapping[str, HeaderSource]]:
        if not headers:
            return {}, self._sources
        own, sources = split_headers(headers)
        if HOST in own or HOST in sources:
            raise InvalidArgument("The header host belongs to the client. Set it when you create the client.")
        return own, {**{name: one for name, one in self._sources.items() if name not in own}, **sources}

    def _endpoint_headers(self, endpoint: Endpoint) -> dict[str, str]:
        """Headers of every request to the endpoint. The caller's own `host` has priority over the endpoint's name."""
        return self._headers if endpoint.host is None else {HOST: endpoint.host, **self._headers}

    def _endpoint_tls(self, endpoint: Endpoint) -> Tls | None:
        """TLS of the endpoint, or None without TLS. Its certificate names the host, not the address."""
        if not endpoint.place.is_secure:
            return None
        tls = self._settings.tls or Tls()
        return tls if endpoint.host is None or tls.server_name else tls.with_server_name(endpoint.host)


# Import only the library in use: grpc and httpx each take 0.1 to 0.25 s to import. Import it when the client is created
# and not during the first call, whose deadline runs.


def _import_library(place: Address) -> None:
    if place.is_rest:
        _import_httpx()
        import tpuserve_client.rest_transport
    else:
        import tpuserve_client.grpc_transport  # noqa: F401


def _import_httpx() -> None:
    """Import httpx without its command, which imports click, rich and pygments: half of the time.

    httpx works without the command if its module cannot be imported.
    """
    if "httpx" in sys.modules:
        return
    sys.modules[_HTTPX_COMMAND] = None  # type: ignore[assignment]  # the import system's mark of a missing module
    try:
        import httpx  # noqa: F401
    finally:
        sys.modules.pop(_HTTPX_COMMAND, None)


def _wire(place: Address) -> Wire:
    if place.is_oip:
        return _oip_wire(place)
    if place.is_rest:
        from tpuserve_client.rest_wire import RestWire

        return RestWire()
    from tpuserve_client.grpc_wire import GrpcWire

    return GrpcWire()


def _oip_wire(place: Address) -> Wire:
    if place.is_rest:
        from tpuserve_client.oip_rest_wire import OipRestWire

        return OipRestWire()
    from tpuserve_client.oip_grpc_wire import OipGrpcWire

    return OipGrpcWire()


def make_transport(endpoint: Endpoint, tls: Tls | None, headers: Mapping[str, str], settings: Settings) -> Transport:
    """Return a blocking transport to the endpoint. It connects at the first request."""
    target = endpoint.place.target
    if endpoint.place.is_rest:
        from tpuserve_client.rest_transport import RestTransport

        return RestTransport(target, tls, headers, settings.pool)
    from tpuserve_client.grpc_transport import GrpcTransport

    return GrpcTransport(target, tls, headers, settings.pool)


def make_async_transport(
    endpoint: Endpoint, tls: Tls | None, headers: Mapping[str, str], settings: Settings
) -> AsyncTransport:
    """Return a transport to the endpoint on the running event loop. It connects at the first request."""
    target = endpoint.place.target
    if endpoint.place.is_rest:
        from tpuserve_client.rest_transport import AsyncRestTransport

        return AsyncRestTransport(target, tls, headers, settings.pool)
    from tpuserve_client.grpc_transport import AsyncGrpcTransport

    return AsyncGrpcTransport(target, tls, headers, settings.pool)
