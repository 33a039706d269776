"""Tests for the names of certificates. tests/e2e/test_client_certificates.py has real ones."""

import pytest

from tpuserve_server.hosts.envoy.client_certificate import names_of_scope
from tpuserve_server.hosts.peer_certificate import names_of_auth_context, names_of_peer
from tpuserve_server.identity.certificate import CertificateNames


def subject(*parts: tuple[str, str]) -> str:
    return names_of_peer({"subject": tuple((part,) for part in parts)}).subject


def test_a_subject_begins_with_its_most_specific_part() -> None:
    assert subject(("countryName", "DE"), ("organizationName", "Example"), ("commonName", "a")) == "CN=a,O=Example,C=DE"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a, b", r"a\, b"),
        ('a+b;<c>"\\', r"a\+b\;\<c\>\"\\"),
        (" a ", r"\ a\ "),
        (" ", r"\ "),
        ("#a#", r"\#a#"),
        ("ä\n", r"\C3\A4\0A"),
        ("", ""),
    ],
)
def test_special_characters_have_openssls_form(value: str, written: str) -> None:
    assert subject(("commonName", value)) == f"CN={written}"


def test_unknown_attributes_keep_their_names() -> None:
    assert subject(("1.2.3", "x"), ("emailAddress", "a@b")) == "emailAddress=a@b,1.2.3=x"


def test_alternative_names_are_kept_by_kind() -> None:
    sans = (("DNS", "a.example"), ("URI", "spiffe://x"), ("email", "a@b"), ("DNS", "b.example"))
    names = names_of_peer({"subject": (), "subjectAltName": sans})
    assert names == CertificateNames("", ("spiffe://x",), ("a.example", "b.example"))
    properties = {"x509_subject": [b"CN=a"], "peer_uri": [b"spiffe://x"], "peer_dns": [b"a.example", b"b.example"]}
    assert names_of_auth_context(properties) == CertificateNames("CN=a", ("spiffe://x",), ("a.example", "b.example"))
    assert names_of_auth_context({"transport_security_type": [b"ssl"]}) is None


def test_envoys_headers_are_read_by_kind() -> None:
    headers = [
        (b"x-tpuserve-client-subject", b"CN=a"), (b"x-tpuserve-client-uri", b"spiffe://x,spiffe://y"),
        (b"x-tpuserve-client-dns", b"a.example,b.example"), (b"other", b"z"),
    ]  # fmt: skip
    assert names_of_scope({"headers": headers}) == CertificateNames(
        "CN=a", ("spiffe://x,spiffe://y",), ("a.example", "b.example")
    )
    none = [(name, b"-") for name, _ in headers]
    assert names_of_scope({"headers": none}) == CertificateNames()
    assert names_of_scope({"headers": []}) == CertificateNames()
