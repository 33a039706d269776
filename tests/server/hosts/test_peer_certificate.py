"""Tests for the names of certificates. tests/e2e/test_client_certificates.py has real connections."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tpuserve_server.access.certificate import CertificateNames
from tpuserve_server.hosts.peer_certificate import names_of_scope

KEY = ec.generate_private_key(ec.SECP256R1())


def names(parts: list[x509.NameAttribute[str]], *alternatives: x509.GeneralName) -> CertificateNames | None:
    """Return the names that the server reads from a certificate with this subject and these alternative names."""
    now = datetime.now(UTC)
    name = x509.Name(parts)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    pem = builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    return names_of_scope({"extensions": {"tls": {"client_cert_chain": (pem, "an authority")}}})


def subject(*parts: tuple[x509.ObjectIdentifier, str]) -> str:
    found = names([x509.NameAttribute(kind, value) for kind, value in parts])
    assert found is not None
    return found.subject


def test_a_subject_begins_with_its_most_specific_part() -> None:
    parts = ((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "a"))
    assert subject(*parts) == "CN=a,O=Example,C=DE"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a, b", r"a\, b"),
        ('a+b;<c>"\\', r"a\+b\;\<c\>\"\\"),
        (" a ", r"\ a\ "),
        ("#a#", r"\#a#"),
        ("ä", r"\C3\A4"),
    ],
)
def test_special_characters_have_openssls_form(value: str, written: str) -> None:
    assert subject((NameOID.COMMON_NAME, value)) == f"CN={written}"


def test_attributes_have_openssls_names() -> None:
    unknown = x509.ObjectIdentifier("1.2.3")
    assert subject((unknown, "x"), (NameOID.EMAIL_ADDRESS, "a@b")) == "emailAddress=a@b,1.2.3=x"
    assert subject((NameOID.SURNAME, "x"), (NameOID.GIVEN_NAME, "y")) == "GN=y,SN=x"


def test_alternative_names_are_kept_by_kind() -> None:
    found = names(
        [],
        x509.DNSName("a.example"),
        x509.UniformResourceIdentifier("spiffe://x,y"),
        x509.RFC822Name("a@b"),
        x509.DNSName("b.example"),
    )
    assert found == CertificateNames("", ("spiffe://x,y",), ("a.example", "b.example"))


@pytest.mark.parametrize("extensions", [{}, {"tls": {}}, {"tls": {"client_cert_chain": ()}}])
def test_a_client_without_a_certificate_has_no_names(extensions: dict[str, object]) -> None:
    assert names_of_scope({"extensions": extensions}) is None
