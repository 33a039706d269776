"""Certificates of the server: those in use, which SIGHUP or a look at their files replaces, their checks and expiry.

It also reads the names of a client's certificate. The imports are light, as the supervisor checks certificates, too.
"""

import asyncio
import contextlib
import logging
import os
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpuserve_server.access.credentials import CertificateNames
from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.hosts.application import HostError, TlsOptions

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, Name
    from starlette.types import Scope

_log = logging.getLogger(__name__)


class Certificates:
    """The certificates in use. The event loop's thread owns it."""

    def __init__(
        self,
        tls: TlsOptions,
        read: Callable[[], TlsOptions] | None,
        use: Callable[[TlsOptions], Awaitable[None]],
        show: Callable[[CertificateStatus], None],
    ) -> None:
        """Begin with `tls`, which the caller has checked and uses. `read` reads them again, and raises HostError.

        `use` uses others, and raises HostError if it cannot. `show` gets the status now and after each reload.
        """
        self._tls = tls
        self._read = read
        self._use = use
        self._show = show
        self._reloading: asyncio.Task[None] | None = None
        # Whether something has asked for a reload since the last one began.
        self._is_due = False
        show(certificate_status(tls))

    def polled(self, wait_s: float) -> contextlib.AbstractContextManager[None]:
        """Return a block during which the certificates are reloaded when their files change."""
        if self._read is None:
            return contextlib.nullcontext()
        return CertificatePoll(self._read, wait_s, self.reload).running(self._tls)

    def reload(self) -> None:
        """Begin to read the certificates again, or do it once more after a reload that runs.

        Errors change nothing and are logged.
        """
        self._is_due = True
        if self._read is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload_while_due(self._read))

    async def _reload_while_due(self, read: Callable[[], TlsOptions]) -> None:
        while self._is_due:
            self._is_due = False
            await self._reload(read)

    async def _reload(self, read: Callable[[], TlsOptions]) -> None:
        try:
            tls = await asyncio.to_thread(check_replacement, read, self._tls)
            await self._use(tls)
        except HostError as error:
            # A program may be replacing one file after the other. The next look then finds both.
            level = logging.WARNING if isinstance(error, KeyMismatch) else logging.ERROR
            _log.log(level, "The server keeps its certificates: %s", error)
            self._show(certificate_status(self._tls, str(error)))
            return
        self._tls = tls
        self._show(certificate_status(tls))
        _log.info("New connections use the certificates that were read again")


class KeyMismatch(HostError):
    """The private key does not belong to the certificate, as between the replacements of two files."""


def check_replacement(read: Callable[[], TlsOptions], current: TlsOptions | None) -> TlsOptions:
    """Read certificates that should replace the current ones, and check them. Blocks.

    Raises:
        HostError: they cannot be read or used, no client would accept them now, or only one of both has a `client_ca`.
    """
    tls = read()
    check_usable(tls)
    if invalidity := find_invalidity(tls):
        raise HostError(invalidity)
    if current is not None and (tls.client_ca is None) is not (current.client_ca is None):
        name = (tls if current.client_ca is None else current).ca_name
        raise HostError(f"A reload can replace {name}, but not add or remove it. Restart the server.")
    return tls


class CertificatePoll:
    """Reads the certificates again and again. All methods run on the event loop of the host."""

    def __init__(self, read: Callable[[], TlsOptions], wait_s: float, changed: Callable[[], None]) -> None:
        """Call `changed` when `read` returns something else than before, or raises another HostError.

        `read` runs in a thread. `wait_s` is the time between two reads; 0: never.
        """
        self._read = read
        self._wait_s = wait_s
        self._changed = changed

    @contextlib.contextmanager
    def running(self, current: TlsOptions) -> Iterator[None]:
        """Poll during the block. The server uses `current`."""
        polling = asyncio.create_task(self._poll(current)) if self._wait_s > 0 else None
        try:
            yield
        finally:
            if polling is not None:
                polling.cancel()

    async def _poll(self, current: TlsOptions) -> None:
        seen: TlsOptions | str = current
        while True:
            await asyncio.sleep(self._wait_s)
            found = await asyncio.to_thread(self._look)
            if found != seen:
                seen = found
                self._changed()

    def _look(self) -> TlsOptions | str:
        try:
            return self._read()
        except HostError as error:
            return str(error)


def check_usable(tls: TlsOptions) -> None:
    """Raise HostError if a text is not PEM, the key is encrypted, or the key does not match the certificate."""
    _check_certificates(tls.certificate_chain, tls.chain_name)
    _check_pair(tls)
    if tls.client_ca is not None:
        _check_certificates(tls.client_ca, tls.ca_name)


def _check_certificates(pem: str, what: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise HostError(f"{what} is not a PEM certificate{_hint(pem)}: {_reason(error)}.") from None


def _check_pair(tls: TlsOptions) -> None:
    """Load key and certificate from a temporary file, which only this user can read. OpenSSL needs a file."""
    with private_file(f"{tls.private_key}\n{tls.certificate_chain}") as path:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise KeyMismatch(f"{tls.key_name} does not belong to {tls.chain_name}.") from None
            what = f"{tls.key_name} is not a PEM private key{_hint(tls.private_key)}"
            raise HostError(f"{what}: {_reason(error)}.") from None
        except _Encrypted:
            raise HostError(f"{tls.key_name} is encrypted. Use a key without a password.") from None


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


def _hint(pem: str) -> str:
    """Return a hint for a text that is probably a path or another format, without the text, which may be a secret."""
    return "" if "-----BEGIN" in pem else " (expected text with a line -----BEGIN, not a path)"


def _reason(error: Exception) -> str:
    # Some errors of ssl have no reason, and their text ends with a line of CPython's source.
    words = getattr(error, "reason", None) or re.sub(r" \(_ssl\.c:\d+\)$", "", str(error))
    return words.replace("_", " ").lower()


class CertificateWatch:
    """Watches the certificates in use. The event loop of the host calls `show` and `stop`; any thread calls `find`."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        """Know no certificate. `unix_s` is the time of day, by which certificates expire."""
        self._unix_s = unix_s
        self._status: CertificateStatus | None = None
        self._next: asyncio.TimerHandle | None = None

    def find(self) -> CertificateStatus | None:
        """Return the newest status, or None without TLS."""
        return self._status

    def show(self, status: CertificateStatus) -> None:
        """Replace the status, and warn about it now and later."""
        self.stop()
        self._status, now_s = status, self._unix_s()
        for line in expiry_warnings(status, now_s):
            _log.warning("%s", line)
        self._next = asyncio.get_running_loop().call_later(next_look_s(status, now_s), self.show, status)

    def stop(self) -> None:
        """Warn no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None


_DAY_S: Final = 86400.0
# The alert TpuserveCertificateExpires begins at the same time.
WARNING_DAYS: Final = 14
_REMEDY: Final = "Replace it. SIGHUP makes the server read it at once"


def certificate_status(tls: TlsOptions, reload_failure: str = "") -> CertificateStatus:
    """Return the status of certificates in use."""
    ends = {"server": _earliest_end(tls.certificate_chain)}
    if tls.client_ca is not None:
        ends["client_ca"] = _earliest_end(tls.client_ca)
    known = {name: end for name, end in ends.items() if end is not None}
    return CertificateStatus(known, reload_failure, {"server": tls.chain_name, "client_ca": tls.ca_name})


def find_invalidity(tls: TlsOptions, now_unix_s: float | None = None) -> str | None:
    """Return why no client would accept the server's own certificate now, or None."""
    own = next(iter(_certificates(tls.certificate_chain)), None)
    if own is None:
        return None
    now = datetime.fromtimestamp(time.time() if now_unix_s is None else now_unix_s, UTC)
    if now > own.not_valid_after_utc:
        return f"{tls.chain_name} expired at {_moment(own.not_valid_after_utc)}."
    if now < own.not_valid_before_utc:
        return f"{tls.chain_name} is not valid before {_moment(own.not_valid_before_utc)}."
    return None


def expiry_warnings(status: CertificateStatus, now_unix_s: float) -> Iterator[str]:
    """Yield a sentence for each certificate that has expired, or that expires within WARNING_DAYS."""
    for name, end_s in status.expires_unix_s.items():
        left_days = (end_s - now_unix_s) / _DAY_S
        moment = _moment(datetime.fromtimestamp(end_s, UTC))
        # A file is named with its noun, a field of an SSLConfig without one.
        place = status.names[name].removeprefix("certificate ")
        if left_days <= 0:
            yield f"A certificate of {place} expired at {moment}. {_REMEDY}"
        elif left_days <= WARNING_DAYS:
            yield f"A certificate of {place} expires at {moment}, in {left_days:.1f} days. {_REMEDY}"


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
