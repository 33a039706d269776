"""TLS of a host: the PEM texts and their checks. Light imports only: the supervisor imports this module, too."""

import contextlib
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpuserve_server.hosts.errors import HostError


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM texts. With a `client_ca`, clients must present a certificate that it has signed."""

    private_key: str = field(repr=False)
    # The server's certificate, then the intermediate certificates.
    certificate_chain: str = field(repr=False)
    client_ca: str | None = field(default=None, repr=False)
    # Source of the texts, for error messages.
    origin: str = "TLS"


def check_usable(tls: TlsOptions) -> None:
    """Raise HostError if a text is not PEM, the key is encrypted, or the key does not match the certificate."""
    _check_certificates(tls.certificate_chain, f"{tls.origin}: server_cert")
    _check_pair(tls)
    if tls.client_ca is not None:
        _check_certificates(tls.client_ca, f"{tls.origin}: custom_ca")


def _check_certificates(pem: str, what: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise HostError(f"{what} is not a PEM certificate: {_reason(error)}.") from None


def _check_pair(tls: TlsOptions) -> None:
    """Load key and certificate from a temporary file, which only this user can read. OpenSSL needs a file."""
    with private_file(f"{tls.private_key}\n{tls.certificate_chain}") as path:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise HostError(f"{tls.origin}: server_key does not belong to server_cert.") from None
            raise HostError(f"{tls.origin}: server_key is not a PEM private key: {_reason(error)}.") from None
        except _Encrypted:
            raise HostError(f"{tls.origin}: server_key is encrypted. Use a key without a password.") from None


@contextlib.contextmanager
def private_file(text: str) -> Iterator[str]:
    """Yield the path of a file with `text`, in memory where the system has such files: SIGKILL then leaves no file."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":
            memory = stack.enter_context(open(os.memfd_create("tpuserve"), "w"))
            file, path = memory, f"/proc/self/fd/{memory.fileno()}"
        else:
            named = stack.enter_context(tempfile.NamedTemporaryFile("w"))
            file, path = named, named.name
        file.write(text)
        file.flush()
        yield path


class _Encrypted(Exception):
    """The key is encrypted. Without the callback that raises this, OpenSSL would prompt on the terminal."""


def _no_password() -> str:
    raise _Encrypted


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
