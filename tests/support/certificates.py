"""A certificate authority of the tests' own, and files of what it has signed."""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import trustme


@dataclass(frozen=True)
class Pem:
    """A certificate, with what leads to its authority, and its key: files."""

    cert: Path
    key: Path


class Authority:
    """`ca` is what clients must trust; `server` is of 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA(organization_name="Test Authority")
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.server = self.issue("127.0.0.1", "localhost")

    def issue(self, *names: str, not_after: datetime | None = None) -> Pem:
        """A certificate of these names, or of a mail address."""
        issued = self._authority.issue_cert(*names, not_after=not_after)
        number = len(list(self._folder.iterdir()))
        pem = Pem(self._folder / f"{number}.crt", self._folder / f"{number}.key")
        pem.cert.write_bytes(b"".join(chain.bytes() for chain in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pem.key))
        return pem


@dataclass(frozen=True)
class ServerTls:
    """What a server shows, and whose clients it serves: anybody's, without `client_ca`."""

    own: Pem
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC's server."""
        ca = self.client_ca.read_bytes() if self.client_ca else None
        pair = (self.own.key.read_bytes(), self.own.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)

    def options(self) -> dict[str, Any]:
        """For uvicorn.Config."""
        options: dict[str, Any] = {"ssl_certfile": str(self.own.cert), "ssl_keyfile": str(self.own.key)}
        if self.client_ca:
            options |= {"ssl_ca_certs": str(self.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options
