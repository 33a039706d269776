"""Names in the certificate of a client, as the credentials file names them. Hosts read the certificate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names of a certificate that an authority of the server's operator has signed.

    `subject` has the form of RFC 4514 and RFC 2253: the most specific part first, such as `CN=client,O=Example`.
    """

    subject: str = ""
    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()

    def references(self) -> "Iterator[Reference]":
        """Yield the references that name this certificate: its URIs, its DNS names, then its subject."""
        for uri in self.uris:
            yield ("uri", uri)
        for name in self.dns:
            yield ("dns", name)
        if self.subject:
            yield ("subject", self.subject)


# A kind of name, and the name. Kinds are separate, so that no DNS name can pass for a subject.
Reference: TypeAlias = tuple[str, str]
# Returns the names of the client's certificate, or None for a client without one.
FindCertificate: TypeAlias = Callable[[], CertificateNames | None]

# Key of an ASGI scope with a FindCertificate. Hosts set it, and clients cannot.
CERTIFICATE_KEY: Final = "tpuserve.certificate"


def no_certificate() -> None:
    """Return None: the client has no certificate (FindCertificate)."""
    return


def parse_reference(text: str) -> Reference:
    """Return the reference of a text: a URI, a subject such as `CN=client,O=Example`, or a DNS name."""
    if "://" in text:
        return ("uri", text)
    return ("subject", text) if "=" in text else ("dns", text)
