"""Validity of TLS certificates: when they expire, and what an operator must do before. Light imports only."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.tls import TlsOptions

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_DAY_S: Final = 86400.0
# The alert TpuserveCertificateExpires begins at the same time.
WARNING_DAYS: Final = 14
_NAMES: Final = {"server": "server_cert", "client_ca": "custom_ca"}


def certificate_status(tls: TlsOptions, reload_failure: str = "") -> CertificateStatus:
    """Return the status of certificates in use."""
    ends = {"server": _earliest_end(tls.certificate_chain)}
    if tls.client_ca is not None:
        ends["client_ca"] = _earliest_end(tls.client_ca)
    return CertificateStatus({name: end for name, end in ends.items() if end is not None}, reload_failure)


def find_invalidity(tls: TlsOptions, now_unix_s: float | None = None) -> str | None:
    """Return why no client would accept the server's own certificate now, or None."""
    own = next(iter(_certificates(tls.certificate_chain)), None)
    if own is None:
        return None
    now = datetime.fromtimestamp(time.time() if now_unix_s is None else now_unix_s, UTC)
    if now > own.not_valid_after_utc:
        return f"{tls.origin}: server_cert expired at {_moment(own.not_valid_after_utc)}."
    if now < own.not_valid_before_utc:
        return f"{tls.origin}: server_cert is not valid before {_moment(own.not_valid_before_utc)}."
    return None


def expiry_warnings(status: CertificateStatus, now_unix_s: float) -> Iterator[str]:
    """Yield a sentence for each certificate that has expired, or that expires within WARNING_DAYS."""
    for name, end_s in status.expires_unix_s.items():
        left_days = (end_s - now_unix_s) / _DAY_S
        moment = _moment(datetime.fromtimestamp(end_s, UTC))
        if left_days <= 0:
            yield f"A certificate of {_NAMES[name]} expired at {moment}. Replace it and send SIGHUP to the server"
        elif left_days <= WARNING_DAYS:
            yield (
                f"A certificate of {_NAMES[name]} expires at {moment}, in {left_days:.1f} days. Replace it and send "
                "SIGHUP to the server"
            )


def next_look_s(status: CertificateStatus, now_unix_s: float) -> float:
    """Return the time until the warnings may differ: until the next one begins, and at most a day."""
    begins = (end_s - WARNING_DAYS * _DAY_S - now_unix_s for end_s in status.expires_unix_s.values())
    return min((wait_s for wait_s in begins if 0 < wait_s < _DAY_S), default=_DAY_S)


def _earliest_end(pem: str) -> float | None:
    return min((each.not_valid_after_utc.timestamp() for each in _certificates(pem)), default=None)


def _certificates(pem: str) -> "list[Certificate]":
    """Return the certificates of a text that OpenSSL accepts. cryptography refuses some of them, so it may be empty."""
    # It takes 50 ms to import, and most servers have no TLS.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem.encode())
    except ValueError:
        return []


def _moment(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
