"""Diagnosis of TLS failures: after a failed connection, another connection finds the reason."""

import socket
import ssl
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from tpuserve_client.address import Address
from tpuserve_client.tls import Tls

_TIMEOUT_S: Final = 5.0
# A server that rejects the client's certificate, or requires one, ends the connection at once.
_FAREWELL_S: Final = 1.0
_HTTP_PORT, _HTTPS_PORT = 80, 443
_NAMES: Final = 5
# Constants from OpenSSL's x509_vfy.h that Python does not name: X509_V_ERR_… and X509_V_FLAG_….
_NOT_YET, _EXPIRED = 9, 10
_WRONG_NAME: Final = (62, 64)
_UNTRUSTED: Final = (18, 19, 20, 21)
_NO_CHECK_TIME: Final = 0x200000
_NO_HTTP2: Final = (
    "the server does not offer HTTP/2 over TLS (ALPN), which gRPC needs; check that the port is not the REST port"
)
# OpenSSL's reasons for data that is not a TLS record.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def handshake_problem(place: Address, tls: Tls, address: str) -> str:
    """Return the TLS problem and its solution, or an empty string if TLS is not the reason.

    `address` is the text of `place` as the user wrote it. Blocks for a few seconds at most.
    """
    if place.target.startswith("unix:"):
        return ""
    try:
        return _problem(place, tls, address) if place.is_secure else _problem_in_the_clear(place, address)
    except OSError:
        return ""  # The server is unreachable, so TLS is not the reason.


def _problem(place: Address, tls: Tls, address: str) -> str:
    context = tls.context()
    if not place.is_rest:
        context.set_alpn_protocols(["h2"])
    name = tls.server_name or _host_and_port(place)[0]
    with _connected(place) as plain:
        try:
            secured = context.wrap_socket(plain, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            return _certificate_problem(error, place, tls, name)
        except (ssl.SSLError, ConnectionError, TimeoutError) as error:
            return _refusal(error, tls) or _no_handshake(error, place, address)
        with closing(secured):
            if not place.is_rest and secured.selected_alpn_protocol() != "h2":
                return _NO_HTTP2
            return _farewell(secured, tls)


def _no_handshake(error: OSError, place: Address, address: str) -> str:
    plaintext = _use(place, address, is_secure=False)
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return f"the server closed the connection during the TLS handshake; if it does not use TLS, {plaintext}"
    if isinstance(error, TimeoutError):
        return f"the server does not answer the TLS handshake; if it does not use TLS, {plaintext}"
    reason = getattr(error, "reason", None) or ""
    if reason in _NO_TLS:
        return f"the server does not use TLS; {plaintext}"
    return f"the TLS handshake failed: {reason.replace('_', ' ').lower()}"


def _problem_in_the_clear(place: Address, address: str) -> str:
    try:
        _shown(place, None)
    except ssl.SSLError as error:
        if not _is_alert(error):
            return ""
    return f"the server uses TLS, but {address} is a plaintext address; {_use(place, address, is_secure=True)}"


def _certificate_problem(error: ssl.SSLCertVerificationError, place: Address, tls: Tls, name: str) -> str:
    shown = _certificate(place, name)
    if error.verify_code == _EXPIRED:
        return f"the server's certificate expired on {shown['notAfter']}"
    if error.verify_code == _NOT_YET:
        return f"the server's certificate is not valid before {shown['notBefore']}"
    if error.verify_code in _WRONG_NAME:
        names = [value for _, value in shown.get("subjectAltName", ())]
        if not names:
            return f"the server's certificate contains no name, so it is not valid for {name}"
        valid = f"the server's certificate is valid for {_listed(names)}, not for {name}"
        return f"{valid}; set a name of the certificate, as with --tls-server-name {names[0]}"
    if error.verify_code in _UNTRUSTED:
        trust = f"{tls.ca} does not contain" if tls.ca else "this system does not trust"
        authority = f"{_name_text(shown['issuer'])}, the authority of the server's certificate"
        return f"{trust} {authority}; set the authority's certificate with --ca"
    return f"the server's certificate was rejected: {error.verify_message}"


def _certificate(place: Address, name: str) -> dict[str, Any]:
    # Python parses only trusted certificates. This context trusts the server's own certificate, only to read it.
    context = _context()
    context.load_verify_locations(cadata=_shown(place, name))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    with _connected(place) as plain, context.wrap_socket(plain, server_hostname=name) as secured:
        return dict(secured.getpeercert() or {})


def _shown(place: Address, name: str | None) -> bytes:
    context = _context()
    context.verify_mode = ssl.CERT_NONE
    with _connected(place) as plain, context.wrap_socket(plain, server_hostname=name) as secured:
        return secured.getpeercert(binary_form=True) or b""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _farewell(secured: ssl.SSLSocket, tls: Tls) -> str:
    """Return the problem that a server reports after the handshake.

    In TLS 1.3, a server checks the client's certificate after the client has completed the handshake.
    """
    secured.settimeout(_FAREWELL_S)
    try:
        is_over = not secured.recv(1)
    except TimeoutError:
        return ""
    except ssl.SSLError as error:
        return _refusal(error, tls)
    except ConnectionError:
        is_over = True
    if not is_over:
        return ""
    closed = "the server closed the connection after the TLS handshake"
    if tls.cert is None:
        return f"{closed}; it may require a client certificate (--cert and --key)"
    return f"{closed}; it may not trust the authority of --cert {tls.cert}"


def _refusal(error: OSError, tls: Tls) -> str:
    if not isinstance(error, ssl.SSLError) or not _is_alert(error):
        return ""
    alert = (error.reason or "").partition("ALERT_")[2].replace("_", " ").lower()
    if alert == "no application protocol":
        return _NO_HTTP2
    if tls.cert is None and alert in ("certificate required", "handshake failure", "bad certificate"):
        return "the server requires a client certificate; set --cert and --key"
    if tls.cert is not None and ("certificate" in alert or alert == "unknown ca"):
        return f"the server rejected the certificate of --cert {tls.cert}: {alert}"
    return f"the server ended the TLS handshake: {alert or error.reason}"


def _is_alert(error: ssl.SSLError) -> bool:
    return "ALERT" in (error.reason or "")


def _connected(place: Address) -> socket.socket:
    return socket.create_connection(_host_and_port(place), _TIMEOUT_S)


def _host_and_port(place: Address) -> tuple[str, int]:
    parts = urlsplit(place.target if place.is_rest else f"//{place.target}")
    return parts.hostname or "", parts.port or (_HTTPS_PORT if place.is_secure else _HTTP_PORT)


def _use(place: Address, address: str, *, is_secure: bool) -> str:
    scheme = ("https" if is_secure else "http") if place.is_rest else ("grpcs" if is_secure else "grpc")
    rest = place.target.partition("://")[2] if place.is_rest else place.target
    # The prefix selects a protocol over the same connection, as in oip+grpc://.
    prefix, plus, _ = address.strip().partition("://")[0].rpartition("+")
    return f"use {prefix}{plus}{scheme}://{rest}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _name_text(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    parts = {key: value for group in name for key, value in group}
    known = [parts[key] for key in ("commonName", "organizationName") if key in parts]
    return ", ".join(known) or str(parts)
