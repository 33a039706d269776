"""Names of a client's certificate, as Python's TLS and grpcio report them. Both have verified the certificate."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tpuserve_server.identity.certificate import CertificateNames

# OpenSSL's short names of the attributes, which Envoy and grpcio use, by the long ones of Python.
_SHORT: Final[Mapping[str, str]] = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "surname": "SN",
    "userId": "UID",
}
# RFC 2253, 2.4
_ESCAPED: Final = frozenset(',+"\\<>;')


def names_of_peer(certificate: Mapping[str, Any]) -> CertificateNames:
    """Return the names in a certificate of `ssl.SSLSocket.getpeercert`."""
    sans = certificate.get("subjectAltName", ())
    return CertificateNames(
        _subject(certificate.get("subject", ())),
        tuple(value for kind, value in sans if kind == "URI"),
        tuple(value for kind, value in sans if kind == "DNS"),
    )


def names_of_auth_context(properties: Mapping[str, Iterable[bytes]]) -> CertificateNames | None:
    """Return the names in grpcio's properties of a connection, or None without a certificate."""
    if "x509_subject" not in properties:
        return None
    return CertificateNames(
        "".join(_texts(properties, "x509_subject")),
        tuple(_texts(properties, "peer_uri")),
        tuple(_texts(properties, "peer_dns")),
    )


def _texts(properties: Mapping[str, Iterable[bytes]], name: str) -> Iterable[str]:
    return (value.decode("latin-1") for value in properties.get(name, ()))


def _subject(parts: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Return a subject in OpenSSL's form of RFC 2253, with the most specific part first."""
    names = ["+".join(f"{_SHORT.get(kind, kind)}={_escape(value)}" for kind, value in part) for part in parts]
    return ",".join(reversed(names))


def _escape(value: str) -> str:
    last = len(value) - 1
    return "".join(_escape_one(each, is_first=index == 0, is_last=index == last) for index, each in enumerate(value))


def _escape_one(each: str, *, is_first: bool, is_last: bool) -> str:
    if each in _ESCAPED or (each == "#" and is_first) or (each == " " and (is_first or is_last)):
        return f"\\{each}"
    if " " <= each <= "~":
        return each
    return "".join(f"\\{byte:02X}" for byte in each.encode())
