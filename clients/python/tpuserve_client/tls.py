"""TLS settings of a client: trusted authorities and the client's certificate. Verification is always on."""

import ssl
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from tpuserve_client.errors import InvalidArgument

_Path: TypeAlias = str | PathLike[str]

_ENCRYPTED: Final = b"ENCRYPTED"
_OTHER_KEY: Final = "KEY_VALUES_MISMATCH"


@dataclass(frozen=True, slots=True)
class Tls:
    """Paths of PEM files.

    `ca`: authorities to trust instead of the system's. `cert`: the client's certificate, followed by its intermediate
    certificates. `key`: the client's key, which may also be in `cert`. `server_name`: the name in the server's
    certificate, if it differs from the address.
    """

    ca: _Path | None = None
    cert: _Path | None = None
    key: _Path | None = None
    server_name: str | None = None

    def check(self) -> None:
        """Raise InvalidArgument like `context`. Does not read the system's certificates, which is slow."""
        self._context(ssl.SSLContext, with_defaults=False)

    def with_server_name(self, name: str) -> "Tls":
        """Return the same settings for a server with this name in its certificate."""
        return replace(self, server_name=name)

    def context(self, kind: type[ssl.SSLContext] | None = None) -> ssl.SSLContext:
        """Return an SSL context that verifies the server's certificate and name. Reads the files.

        `kind` is another library's ssl.SSLContext class. Raises InvalidArgument for files that are not PEM certificates
        or keys.
        """
        return self._context(kind or ssl.SSLContext)

    def _context(self, kind: type[ssl.SSLContext], *, with_defaults: bool = True) -> ssl.SSLContext:
        context = kind(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca is None:
                if with_defaults:
                    context.load_default_certs()
            else:
                context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise InvalidArgument(f"{self.ca} does not contain PEM certificates of authorities.") from None
        except OSError as error:
            raise InvalidArgument(f"{self.ca}: {error.strerror}.") from None
        if self.cert is None and self.key is not None:
            raise InvalidArgument(f"The key {self.key} has no certificate. Set the certificate, too.")
        if self.cert is not None:
            self._show_certificate(context, self.cert)
        return context

    def pem(self, name: str) -> bytes | None:
        """Return the content of the file `ca`, `cert` or `key`, or None if it is not set. Raises InvalidArgument."""
        path = getattr(self, name)
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as error:
            raise InvalidArgument(f"{path}: {error.strerror}.") from None

    def _show_certificate(self, context: ssl.SSLContext, cert: _Path) -> None:
        pems = {name: self.pem(name) for name in ("cert", "key")}
        key = pems["key"] or pems["cert"]
        place = self.key or cert
        # OpenSSL would prompt for the password on the terminal.
        if key is not None and _ENCRYPTED in key:
            raise InvalidArgument(f"The key in {place} is encrypted. Use a key without a password.")
        try:
            context.load_cert_chain(cert, self.key)
        except ssl.SSLError as error:
            if error.reason == _OTHER_KEY:
                raise InvalidArgument(f"The key in {place} does not belong to the certificate in {cert}.") from None
            raise InvalidArgument(
                f"{cert}: expected a certificate and its key{_where(self.key)}, as PEM text."
            ) from None


def _where(key: _Path | None) -> str:
    return "" if key is None else f" in {key}"
