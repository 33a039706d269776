"""TLS of a host: the PEM texts, and whether they can be used. Imports nothing heavy: the supervisor reads it too."""

import ssl
import tempfile
from dataclasses import dataclass, field

from tpuserve_server.hosts.errors import HostError


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM texts. Where there is a `client_ca`, clients must show a certificate that it has signed."""

    private_key: str = field(repr=False)
    # The server's own first, then those that lead to a root.
    certificate_chain: str = field(repr=False)
    client_ca: str | None = field(default=None, repr=False)
    # Where the texts come from, for messages.
    origin: str = "TLS"


def server_context(tls: TlsOptions) -> ssl.SSLContext:
    """For Python's own servers, TLS 1.2 and later. Raises HostError when a text is no PEM or two do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_certificates(tls.certificate_chain, f"{tls.origin}: server_cert")
    _load_pair(context, tls)
    if tls.client_ca is not None:
        _check_certificates(tls.client_ca, f"{tls.origin}: custom_ca")
        context.load_verify_locations(cadata=tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_certificates(pem: str, what: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise HostError(f"{what} is no certificate in PEM: {_reason(error)}.") from None


def _load_pair(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """OpenSSL takes a key from a file alone: for this moment there is one that only this user can read."""
    with tempfile.NamedTemporaryFile("w", prefix="tpuserve-") as file:
        file.write(f"{tls.private_key}\n{tls.certificate_chain}")
        file.flush()
        try:
            context.load_cert_chain(file.name, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise HostError(f"{tls.origin}: server_key is not the key of server_cert.") from None
            raise HostError(f"{tls.origin}: server_key is no private key in PEM: {_reason(error)}.") from None
        except _Encrypted:
            raise HostError(f"{tls.origin}: server_key is encrypted; give it without a password.") from None


class _Encrypted(Exception):
    """OpenSSL asks for a password; left alone it would ask on the terminal."""


def _no_password() -> str:
    raise _Encrypted


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
