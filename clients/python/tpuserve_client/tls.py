"""TLS towards a server: which authorities are trusted, and who calls. Nothing here turns verification off."""

import ssl
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from tpuserve_client.errors import InvalidArgument

_Path: TypeAlias = str | PathLike[str]

_ENCRYPTED: Final = b"ENCRYPTED"
_OTHER_KEY: Final = "KEY_VALUES_MISMATCH"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of PEM texts.

    `ca`: authorities that are trusted, instead of the system's. `cert`: the client's own certificate, followed by those
    that lead to its authority; `key`: its key, which may stand in `cert`, too. `server_name`: the name that the
    server's certificate must have where the address is no such name.
    """

    ca: _Path | None = None
    cert: _Path | None = None
    key: _Path | None = None
    server_name: str | None = None

    def context(self, kind: type[ssl.SSLContext] | None = None) -> ssl.SSLContext:
        """What verifies a server by its certificate and its name. Reads the files.

        `kind`: another library's ssl.SSLContext. InvalidArgument for files that are none of these.
        """
        context = (kind or ssl.SSLContext)(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise InvalidArgument(f"{self.ca} has no certificates of authorities, as PEM text.") from None
        except OSError as error:
            raise InvalidArgument(f"{self.ca}: {error.strerror}.") from None
        if self.cert is None and self.key is not None:
            raise InvalidArgument(f"A key was given, {self.key}, and no certificate that it belongs to.")
        if self.cert is not None:
            self._show_certificate(context, self.cert)
        return context

    def pem(self, name: str) -> bytes | None:
        """The text of the file `ca`, `cert` or `key`; None for one that there is none of. InvalidArgument."""
        path = getattr(self, name)
        try:
            return None if path is None else Path(path).read_bytes()
        except OSError as error:
            raise InvalidArgument(f"{path}: {error.strerror}.") from None

    def _show_certificate(self, context: ssl.SSLContext, cert: _Path) -> None:
        pems = {name: self.pem(name) for name in ("cert", "key")}
        key = pems["key"] or pems["cert"]
        place = self.key or cert
        # OpenSSL would ask for the password at the terminal.
        if key is not None and _ENCRYPTED in key:
            raise InvalidArgument(f"The key in {place} is encrypted: one without a password is needed.")
        try:
            context.load_cert_chain(cert, self.key)
        except ssl.SSLError as error:
            if error.reason == _OTHER_KEY:
                raise InvalidArgument(f"The key in {place} is of another certificate than the one in {cert}.") from None
            raise InvalidArgument(
                f"{cert}: expected a certificate and its key{_where(self.key)}, as PEM text."
            ) from None


def _where(key: _Path | None) -> str:
    return "" if key is None else f" in {key}"
