"""Access to a server: TLS settings, and the API key and headers for every request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent.ssl
from geventhttpclient import HTTPClient

from tpuserve_client import Client, KeyFile
from tpuserve_client.address import parse_address
from tpuserve_client.credentials import AUTHORIZATION, check_private
from tpuserve_client.exchange import Transport
from tpuserve_client.grpc_transport import GrpcTransport
from tpuserve_client.request_headers import HOST
from tpuserve_client.rest_transport import RestTransport
from tpuserve_client.tls import Tls


@dataclass(frozen=True, slots=True)
class Access:
    """TLS settings, API key and request headers.

    `tls` applies to addresses with TLS, `headers` to all addresses. The key goes only to encrypted or local addresses,
    unless `allow_plaintext_key` is set. Key and header values are secrets: no message or report contains them.
    """

    tls: Tls = field(default_factory=Tls)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_key: str | KeyFile | None = field(default=None, repr=False)
    allow_plaintext_key: bool = False

    @property
    def has_secrets(self) -> bool:
        return bool(self.headers) or self.api_key is not None

    def headers_of(self, address: str) -> dict[str, str]:
        """Return the headers for requests to an address, with the current key.

        Raises InvalidArgument if the key would cross the network in plaintext, or cannot be read.
        """
        if self.api_key is None:
            return dict(self.headers)
        self.check_key(address)
        key = self.api_key if isinstance(self.api_key, str) else self.api_key()
        return {**self.headers, AUTHORIZATION: f"Bearer {key}"}

    def check_key(self, address: str) -> None:
        """Raise InvalidArgument if the key would cross the network to the address in plaintext."""
        if self.api_key is not None and not self.allow_plaintext_key:
            check_private([parse_address(address)], "set --allow-plaintext-key")

    def tls_of(self, address: str) -> Tls | None:
        """Return the TLS settings for an address, or None if the address is plaintext."""
        return self.tls if parse_address(address).is_secure else None

    def client(self, address: str, timeout_s: float) -> Client:
        """Return a client for all requests except the load's, such as metadata requests. Raises InvalidArgument."""
        self.check_key(address)
        return Client(
            address,
            tls=self.tls_of(address),
            headers=self.headers,
            timeout_s=timeout_s,
            api_key=self.api_key,
            allow_plaintext_key=True,
        )

    def transport(self, address: str) -> Transport:
        """Return a blocking transport for encoded requests. The caller closes it. Raises InvalidArgument."""
        place = parse_address(address)
        kind = RestTransport if place.is_rest else GrpcTransport
        return kind(place.target, self.tls_of(address), self.headers_of(address))

    def http_client(self, url: str, connections: int, timeout_s: float, address: str = "") -> HTTPClient:
        """Return an HTTP client for the URL's host, or for `address`, one of its IP addresses, for use from greenlets.

        It connects on the first request. Raises InvalidArgument.
        """
        parts = urlsplit(url)
        options: dict[str, Any] = {
            "concurrency": connections,
            "connection_timeout": timeout_s,
            "network_timeout": timeout_s,
            "headers": self.headers_of(url),
        }
        tls = self.tls_of(url)
        if tls is not None:
            context = tls.context(gevent.ssl.SSLContext)
            options["ssl_context_factory"] = lambda **_: context
            options["ssl_options"] = {"server_hostname": tls.server_name} if tls.server_name else {}
            if address:
                options["ssl_options"].setdefault("server_hostname", parts.hostname)
        if address:
            options["headers"].setdefault(HOST, parts.netloc)
            host = f"[{address}]" if ":" in address else address
            url = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host).geturl()
        return HTTPClient.from_url(url, **options)

    def to_wire(self) -> dict[str, Any]:
        """Return a document for `from_wire`, with file names, the current key and header values."""
        paths = [
            None if path is None else str(Path(path).absolute()) for path in (self.tls.ca, self.tls.cert, self.tls.key)
        ]
        key = self.api_key() if isinstance(self.api_key, KeyFile) else self.api_key
        return {
            "tls": [*paths, self.tls.server_name],
            "headers": dict(self.headers),
            "key": [key, self.allow_plaintext_key],
        }

    @classmethod
    def from_wire(cls, document: Mapping[str, Any]) -> "Access":
        """Return the access that `to_wire` encoded."""
        return cls(Tls(*document["tls"]), document["headers"], *document["key"])
