"""A certificate authority for tests, and files of certificates that it issues."""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import trustme


@dataclass(frozen=True)
class Pem:
    """Files of a certificate with its intermediate certificates, and of its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority. Clients must trust `ca`; `server` is the certificate of 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name="Test Authority")
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.server = self.issue("127.0.0.1", "localhost")

    def issue(self, *names: str, not_after: datetime | None = None) -> Pem:
        """Issue a certificate for these names, or for an email address."""
        issued = self._authority.issue_cert(*names, not_after=not_after)
        number = len(list(self._folder.iterdir()))
        pem = Pem(self._folder / f"{number}.crt", self._folder / f"{number}.key")
        pem.cert.write_bytes(b"".join(chain.bytes() for chain in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pem.key))
        return pem


@dataclass(frozen=True)
class ServerTls:
    """A server's certificate, and the authority of its clients. Without `client_ca`, it accepts all clients."""

    own: Pem
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC's server."""
        ca = self.client_ca.read_bytes() if self.client_ca else None
        pair = (self.own.key.read_bytes(), self.own.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)

    def options(self) -> dict[str, Any]:
        """Return options for uvicorn.Config."""
        options: dict[str, Any] = {"ssl_certfile": str(self.own.cert), "ssl_keyfile": str(self.own.key)}
        if self.client_ca:
            options |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options
