"""Access to a server: TLS settings, and headers for every request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent.ssl
from geventhttpclient import HTTPClient

from tpuserve_client import Client
from tpuserve_client.address import parse_address
from tpuserve_client.exchange import Transport
from tpuserve_client.grpc_transport import GrpcTransport
from tpuserve_client.rest_transport import RestTransport
from tpuserve_client.tls import Tls


@dataclass(frozen=True, slots=True)
class Access:
    """TLS settings and request headers.

    `tls` applies to addresses with TLS, `headers` to all addresses. Header values are secrets: no message or report
    contains them.
    """

    tls: Tls = field(default_factory=Tls)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def tls_of(self, address: str) -> Tls | None:
        """Return the TLS settings for an address, or None if the address is plaintext."""
        return self.tls if parse_address(address).is_secure else None

    def client(self, address: str, timeout_s: float) -> Client:
        """Return a client for all requests except the load's, such as metadata requests. Raises InvalidArgument."""
        return Client(address, tls=self.tls_of(address), headers=self.headers, timeout_s=timeout_s)

    def transport(self, address: str) -> Transport:
        """Return a blocking transport for encoded requests. The caller closes it. Raises InvalidArgument."""
        place = parse_address(address)
        kind = RestTransport if place.is_rest else GrpcTransport
        return kind(place.target, self.tls_of(address), self.headers)

    def http_client(self, url: str, connections: int, timeout_s: float) -> HTTPClient:
        """Return an HTTP client for the URL's host, for use from greenlets.

        It connects on the first request. Raises InvalidArgument.
        """
        options: dict[str, Any] = {
            "concurrency": connections,
            "connection_timeout": timeout_s,
            "network_timeout": timeout_s,
            "headers": self.headers,
        }
        tls = self.tls_of(url)
        if tls is not None:
            context = tls.context(gevent.ssl.SSLContext)
            options["ssl_context_factory"] = lambda **_: context
            options["ssl_options"] = {"server_hostname": tls.server_name} if tls.server_name else {}
        return HTTPClient.from_url(url, **options)

    def to_wire(self) -> dict[str, Any]:
        """Return a document for `from_wire`, with file names and header values."""
        paths = [
            None if path is None else str(Path(path).absolute()) for path in (self.tls.ca, self.tls.cert, self.tls.key)
        ]
        return {"tls": [*paths, self.tls.server_name], "headers": dict(self.headers)}

    @classmethod
    def from_wire(cls, document: Mapping[str, Any]) -> "Access":
        """Return the access that `to_wire` encoded."""
        return cls(Tls(*document["tls"]), document["headers"])
