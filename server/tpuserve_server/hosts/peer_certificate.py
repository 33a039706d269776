"""Names of a client's certificate, which the server has verified."""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpuserve_server.access.certificate import CertificateNames

if TYPE_CHECKING:
    from cryptography.x509 import Name
    from starlette.types import Scope

# OpenSSL's short names of attributes that RFC 4514 does not name, by their object identifiers.
_SHORT: Final = {
    "1.2.840.113549.1.9.1": "emailAddress",
    "2.5.4.4": "SN",
    "2.5.4.5": "serialNumber",
    "2.5.4.12": "title",
    "2.5.4.42": "GN",
}


def names_of_scope(scope: "Scope") -> CertificateNames | None:
    """Return the names of the client of a request (ASGI TLS extension), or None without a certificate."""
    tls = scope.get("extensions", {}).get("tls")
    chain = () if tls is None else tls.get("client_cert_chain") or ()
    # The first certificate is the client's own.
    return _names_of(next(iter(chain))) if chain else None


# A client usually sends many requests, and many clients share a certificate.
@lru_cache(maxsize=256)
def _names_of(pem: str) -> CertificateNames:
    # It takes 50 ms to import, and most servers have no client certificates.
    from cryptography.x509 import (
        DNSName,
        ExtensionNotFound,
        SubjectAlternativeName,
        UniformResourceIdentifier,
        load_pem_x509_certificate,
    )

    certificate = load_pem_x509_certificate(pem.encode())
    try:
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return CertificateNames(_subject(certificate.subject), (), ())
    return CertificateNames(
        _subject(certificate.subject),
        tuple(names.get_values_for_type(UniformResourceIdentifier)),
        tuple(names.get_values_for_type(DNSName)),
    )


def _subject(name: "Name") -> str:
    """Return a subject in OpenSSL's form of RFC 2253, with the most specific part first."""
    from cryptography.x509 import ObjectIdentifier

    text = name.rfc4514_string({ObjectIdentifier(number): short for number, short in _SHORT.items()})
    return "".join(each if " " <= each <= "~" else "".join(f"\\{byte:02X}" for byte in each.encode()) for each in text)
