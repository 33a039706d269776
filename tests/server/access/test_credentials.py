"""Tests for the lines of a credentials file."""

import pytest

from tpuserve_server.access.access import Role
from tpuserve_server.access.credentials import (
    KEY_PREFIX,
    CertificateNames,
    CredentialsError,
    digest_of,
    make_key,
    parse_credentials,
)

HEX = digest_of("key").hex()
OTHER = digest_of("other").hex()


def test_a_line_is_a_client_with_roles_and_models() -> None:
    credentials = parse_credentials(
        f"# clients\n\nalice predict,read sha256:{HEX}\n"
        f"  shop  predict sha256:{OTHER.upper()} digits,shop-*  # a comment\n"
    )
    alice, shop = credentials.find_key(digest_of("key")), credentials.find_key(digest_of("other"))
    assert alice is not None
    assert (alice.name, alice.roles, alice.models) == ("alice", frozenset((Role.PREDICT, Role.READ)), None)
    assert shop is not None
    assert [shop.allows(name) for name in ("digits", "shop-1", "Shop-1", "digits2", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert credentials.find_key(digest_of("unknown")) is None


def test_a_hash_with_the_same_first_bytes_is_another_key() -> None:
    credentials = parse_credentials(f"alice read sha256:{HEX}\n")
    digest = digest_of("key")
    assert credentials.find_key(digest[:8] + bytes(24)) is None
    assert credentials.find_key(digest[:8]) is None


def test_one_client_may_have_several_keys() -> None:
    credentials = parse_credentials(f"alice read sha256:{HEX}\nalice read,control sha256:{OTHER}\n")
    assert {identity.name for _, identity in credentials.keys.values()} == {"alice"}


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("spiffe://example/a", CertificateNames(uris=("https://x", "spiffe://example/a"))),
        ("a.example", CertificateNames(dns=("b.example", "a.example"))),
        ("CN=a,O=Example Org", CertificateNames("CN=a,O=Example Org")),
        (r"CN=a\, b", CertificateNames(r"CN=a\, b")),
    ],
)
def test_a_certificate_is_found_by_any_of_its_names(reference: str, names: CertificateNames) -> None:
    found = parse_credentials(f"robot read 'certificate:{reference}'\n").find_certificate(names)
    assert found is not None
    assert found.name == "robot"


@pytest.mark.parametrize(
    "names",
    [
        CertificateNames(dns=("spiffe://example/a",)),
        CertificateNames("spiffe://example/a"),
        CertificateNames(uris=("spiffe://example/b",)),
        CertificateNames(uris=("SPIFFE://example/a",)),
        CertificateNames(),
    ],
)
def test_a_name_of_another_kind_is_another_name(names: CertificateNames) -> None:
    assert parse_credentials("robot read certificate:spiffe://example/a\n").find_certificate(names) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"alice sha256:{HEX}", "2 words, expected NAME ROLES"),
        (f"alice read sha256:{HEX} m n", "5 words"),
        (f"alice write sha256:{HEX}", "unknown role, expected some of predict, read, control"),
        (f"alice read, sha256:{HEX}", "unknown role"),
        (f"alice Read sha256:{HEX}", "unknown role"),
        ("alice read sha256:00", "sha256 must have 64 hexadecimal digits"),
        (f"alice read sha256:{'g' * 64}", "sha256 must have 64 hexadecimal digits"),
        (f"alice read md5:{HEX}", "the credential has no known kind"),
        ("alice read certificate:", "the credential has no known kind"),
        (f"alice read sha256:{HEX} m,,n", "the list of models has an empty name"),
        (f"{'a' * 65} read sha256:{HEX}", "the name must have 1 to 64 printable characters"),
        (f"'' read sha256:{HEX}", "the name must have"),
        (f"'a\x07' read sha256:{HEX}", "the name must have"),
        (f"bob 'read sha256:{HEX}", "No closing quotation"),
        (f"bob read sha256:{OTHER}", "an earlier line has the same key"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, reason: str) -> None:
    with pytest.raises(CredentialsError, match=f"^line 3: .*{reason}"):
        parse_credentials(f"\nfirst read sha256:{OTHER}\n{line}\nlast read,\n")


@pytest.mark.parametrize("line", ["alice read {}", f"alice {{}} sha256:{HEX}"])
def test_a_key_in_another_place_is_not_repeated(line: str) -> None:
    key = make_key()
    with pytest.raises(CredentialsError) as error:
        parse_credentials(f"{line.format(key)}\n")
    assert key not in str(error.value)


@pytest.mark.parametrize("name", ["CN=a#1", "spiffe://example/a#1"])
def test_a_number_sign_within_a_word_begins_no_comment(name: str) -> None:
    credentials = parse_credentials(f"shop predict certificate:{name} digits # a robot's comment\n")
    [identity] = credentials.certificates.values()
    assert not identity.allows("other")


def test_a_file_that_ends_within_a_line_is_refused() -> None:
    """The missing part may be the models. Without them, the client could use all models."""
    with pytest.raises(CredentialsError, match="the last line has no end"):
        parse_credentials(f"shop predict sha256:{HEX}")


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n"])
def test_a_file_without_credentials_is_refused(text: str) -> None:
    with pytest.raises(CredentialsError, match="the file has no credential"):
        parse_credentials(text)


def test_keys_are_random_and_have_no_dots() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(KEY_PREFIX) and len(key) == 52 and "." not in key and key.isascii() for key in keys)


def test_a_hash_is_never_shown() -> None:
    assert HEX[:8] not in repr(parse_credentials(f"alice read sha256:{HEX}\n"))
