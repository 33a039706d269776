"""Tests for certificates: those that are read again, their validity, the poll of their file, and names of clients."""

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.server.hosts.test_tls import CA, CLIENT, MUTUAL, TLS, chain_of, key_of
from tpuserve_server.access.credentials import CertificateNames
from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.hosts.application import HostError, TlsOptions
from tpuserve_server.hosts.certificates import (
    WARNING_DAYS,
    CertificatePoll,
    Certificates,
    CertificateWatch,
    certificate_status,
    check_replacement,
    expiry_warnings,
    find_invalidity,
    names_of_scope,
    next_look_s,
)

CURRENT = TlsOptions(**TLS)
OTHER = CA.issue_cert("127.0.0.1")
NEXT = TlsOptions(private_key=key_of(OTHER), certificate_chain=chain_of(OTHER))


def test_a_certificate_of_the_same_kind_may_replace_the_current_one() -> None:
    assert check_replacement(lambda: NEXT, CURRENT) is NEXT
    assert check_replacement(lambda: NEXT, None) is NEXT


def test_a_reload_cannot_begin_to_require_certificates_of_clients() -> None:
    with pytest.raises(HostError, match="not add or remove it"):
        check_replacement(lambda: TlsOptions(**MUTUAL), CURRENT)


def issued(*, not_before: datetime | None = None, not_after: datetime | None = None) -> TlsOptions:
    """Return a server's certificate with this validity."""
    own = CA.issue_cert("127.0.0.1", not_before=not_before, not_after=not_after)
    return TlsOptions(private_key=key_of(own), certificate_chain=chain_of(own), chain_name="here: server_cert")


def test_a_certificate_that_no_client_accepts_now_replaces_nothing() -> None:
    now = datetime.now(UTC)
    with pytest.raises(HostError, match=r"^here: server_cert expired at \d{4}-"):
        check_replacement(
            lambda: issued(not_before=now - timedelta(days=9), not_after=now - timedelta(days=1)), CURRENT
        )
    with pytest.raises(HostError, match=r"^here: server_cert is not valid before \d{4}-"):
        check_replacement(lambda: issued(not_before=now + timedelta(days=1)), CURRENT)


async def reload(certificates: Certificates) -> None:
    """Read the certificates again, and wait for the end of the task that does it."""
    before = asyncio.all_tasks()
    certificates.reload()
    await asyncio.wait(asyncio.all_tasks() - before)


async def test_new_certificates_are_used_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[TlsOptions] = [NEXT]

    def read() -> TlsOptions:
        if not answers:
            raise HostError("no file")
        return answers.pop()

    async def use(tls: TlsOptions) -> None:
        used.append(tls)

    shown: list[CertificateStatus] = []
    used: list[TlsOptions] = []
    certificates = Certificates(CURRENT, read, use, shown.append)
    await reload(certificates)
    await reload(certificates)
    assert used == [NEXT]
    assert "The server keeps its certificates: no file" in caplog.text
    assert [status.reload_failure for status in shown] == ["", "", "no file"]


async def test_certificates_that_the_server_cannot_use_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def use(_: TlsOptions) -> None:
        raise HostError("unknown key")

    shown: list[CertificateStatus] = []
    await reload(Certificates(CURRENT, lambda: NEXT, use, shown.append))
    assert "The server keeps its certificates: unknown key" in caplog.text
    assert [status.reload_failure for status in shown] == ["", "unknown key"]


async def test_a_reload_that_is_asked_for_during_another_follows_it() -> None:
    used: list[str] = []
    files = iter(["first", "second", "third"])

    async def use(tls: TlsOptions) -> None:
        used.append(tls.chain_name)
        if tls.chain_name == "first":
            certificates.reload()
            certificates.reload()

    def read() -> TlsOptions:
        return dataclasses.replace(NEXT, chain_name=next(files))

    certificates = Certificates(CURRENT, read, use, lambda _: None)
    await reload(certificates)
    assert used == ["first", "second"]


DAY_S = 86400.0
NOW_S = 1_700_000_000.0
END = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
LEAF = CA.issue_cert("127.0.0.1", not_after=END)


def test_the_first_certificate_to_expire_counts() -> None:
    later = CA.issue_cert("localhost", not_after=END + timedelta(days=9))
    tls = TlsOptions(key_of(LEAF), f"{chain_of(later)}{chain_of(LEAF)}", client_ca=CA.cert_pem.bytes().decode())
    status = certificate_status(tls, "why")
    assert status.expires_unix_s.keys() == {"server", "client_ca"}
    assert status.expires_unix_s["server"] == END.timestamp()
    assert status.reload_failure == "why"


def test_without_client_certificates_there_is_one_expiry() -> None:
    assert certificate_status(TlsOptions(key_of(LEAF), chain_of(LEAF))).expires_unix_s == {"server": END.timestamp()}


def test_text_that_cannot_be_parsed_has_no_expiry() -> None:
    broken = TlsOptions("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert certificate_status(broken).expires_unix_s == {}
    assert find_invalidity(broken) is None


@pytest.mark.parametrize(
    ("certificate", "after_s", "why"),
    [
        (LEAF, 1.0, "expired at 2030-01-02 03:04 UTC."),
        (LEAF, -1.0, None),
        (CA.issue_cert("127.0.0.1", not_before=END, not_after=END + timedelta(days=1)), -1.0, "is not valid before"),
    ],
    ids=["expired", "valid", "not valid yet"],
)
def test_validity_of_the_own_certificate(certificate: trustme.LeafCert, after_s: float, why: str | None) -> None:
    # The chain's other certificates do not count here: a client may not need them.
    tls = TlsOptions(key_of(certificate), f"{chain_of(certificate)}{chain_of(CLIENT)}", chain_name="here: server_cert")
    found = find_invalidity(tls, END.timestamp() + after_s)
    assert (found is None) is (why is None)
    assert why is None or (found or "").startswith(f"here: server_cert {why}")


@pytest.mark.parametrize(
    ("left_days", "said"),
    [(WARNING_DAYS + 0.1, ""), (WARNING_DAYS - 0.1, "in 13.9 days"), (0.5, "in 0.5 days"), (-1.0, "expired at")],
)
def test_operator_is_warned_before_the_end_and_after_it(left_days: float, said: str) -> None:
    status = CertificateStatus({"server": NOW_S + left_days * DAY_S, "client_ca": NOW_S + 99 * DAY_S})
    lines = list(expiry_warnings(status, NOW_S))
    assert len(lines) == bool(said)
    assert all(said in line and "server_cert" in line and "SIGHUP" in line for line in lines)


def test_next_look_is_when_a_warning_begins_and_at_most_a_day_later() -> None:
    assert next_look_s(CertificateStatus({"server": NOW_S + (WARNING_DAYS + 0.25) * DAY_S}), NOW_S) == DAY_S / 4
    assert next_look_s(CertificateStatus({"server": NOW_S + 99 * DAY_S}), NOW_S) == DAY_S
    assert next_look_s(CertificateStatus({"server": NOW_S - DAY_S}), NOW_S) == DAY_S
    assert next_look_s(CertificateStatus(), NOW_S) == DAY_S


FIRST = TlsOptions(**TLS, chain_name="first")
SECOND = TlsOptions(**TLS, chain_name="second")


async def test_each_change_is_reported_once() -> None:
    looks: list[TlsOptions | str] = [FIRST, FIRST, "broken", "broken", SECOND, SECOND, SECOND, FIRST]
    seen: list[TlsOptions | str] = []
    all_seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> TlsOptions:
        now = looks.pop(0) if len(looks) > 1 else looks[0]
        seen.append(now)
        if len(seen) > 8:
            loop.call_soon_threadsafe(all_seen.set)
        if isinstance(now, str):
            raise HostError(now)
        return now

    changes: list[int] = []
    poll = CertificatePoll(read, 0.001, lambda: changes.append(len(seen)))
    with poll.running(FIRST):
        await all_seen.wait()
    assert changes == [3, 5, 8]


async def test_without_an_interval_nothing_is_read() -> None:
    def read() -> TlsOptions:
        raise AssertionError

    before = asyncio.all_tasks()
    with CertificatePoll(read, 0, lambda: None).running(FIRST):
        assert asyncio.all_tasks() == before


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


class LoggedLines(logging.Handler):
    """The lines of the watch, and an event that the next one sets."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.came = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.came.set()


@pytest.fixture
def logged() -> Iterator[LoggedLines]:
    logger, handler = logging.getLogger("tpuserve_server.hosts.certificates"), LoggedLines()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_status_is_kept_until_the_next_one() -> None:
    watch = CertificateWatch(lambda: 0.0)
    assert watch.find() is None
    first, second = CertificateStatus({"server": 99 * DAY_S}), CertificateStatus({"server": 199 * DAY_S}, "no file")
    watch.show(first)
    watch.show(second)
    watch.stop()
    assert watch.find() is second


async def test_warning_comes_when_it_is_due_while_the_server_runs(logged: LoggedLines) -> None:
    # The certificate expires at 0, and its warning begins 10 ms after `show`.
    now_s = [-WARNING_DAYS * DAY_S - 0.01]
    watch = CertificateWatch(lambda: now_s[0])
    watch.show(CertificateStatus({"server": 0.0}))
    assert not logged.lines
    now_s[0] = -DAY_S
    await logged.came.wait()
    watch.stop()
    assert [line.partition(". ")[0] for line in logged.lines] == [
        "A certificate of server_cert expires at 1970-01-01 00:00 UTC, in 1.0 days"
    ]


async def test_replaced_certificate_ends_the_warnings(logged: LoggedLines) -> None:
    watch = CertificateWatch(lambda: 0.0)
    watch.show(CertificateStatus({"server": -DAY_S}))
    watch.show(CertificateStatus({"server": 99 * DAY_S}))
    watch.stop()
    assert len(logged.lines) == 1
    assert "expired at 1969-12-31 00:00 UTC" in logged.lines[0]
