"""Tests for the validity of certificates: the earliest expiry, and the warnings of the log."""

from datetime import UTC, datetime, timedelta

import pytest
import trustme

from tests.server.hosts.test_tls import CA, CLIENT, chain_of, key_of
from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.hosts.certificates import (
    WARNING_DAYS,
    certificate_status,
    expiry_warnings,
    find_invalidity,
    next_look_s,
)
from tpuserve_server.hosts.tls import TlsOptions

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
    tls = TlsOptions(key_of(certificate), f"{chain_of(certificate)}{chain_of(CLIENT)}", origin="here")
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
