"""Diagnosis of TLS failures: after a failed connection, another connection finds the reason."""

import socket
import ssl
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from tpuserve_client.address import Address, parse_address
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
# OpenSSL's reasons for data that is not a TLS record.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


def handshake_problem(address: str, tls: Tls) -> str:
    """Return the TLS problem and its solution, or an empty string if TLS is not the reason.

    Blocks for a few seconds at most.
    """
    place = parse_address(address)
    if place.target.startswith("unix:"):
        return ""
    try:
        return _problem(place, tls) if place.is_secure else _problem_in_the_clear(place, address)
    except OSError:
        return ""  # The server is unreachable, so TLS is not the reason.


def _problem(place: Address, tls: Tls) -> str:
    context = tls.context()
    if not place.is_rest:
        context.set_alpn_protocols(["h2"])
    name = tls.server_name or _host_and_port(place)[0]
    with _connected(place) as plain:
        try:
            secured = context.wrap_socket(plain, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            return _certificate_problem(error, place, tls, name)
        except (ssl.SSLError, ConnectionError) as error:
            return _refusal(error, tls) or _no_handshake(error, place)
        with closing(secured):
            if not place.is_rest and secured.selected_alpn_protocol() != "h2":
                return "it does not offer HTTP/2 over TLS (ALPN), which gRPC needs: is it a REST port?"
            return _farewell(secured, tls)


def _no_handshake(error: OSError, place: Address) -> str:
    in_the_clear = _give(place, is_secure=False)
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return f"it ends the connection at the TLS handshake; if it does not speak TLS, {in_the_clear}"
    reason = getattr(error, "reason", None) or ""
    if reason in _NO_TLS:
        return f"it does not speak TLS: {in_the_clear}"
    return f"the TLS handshake failed: {reason.replace('_', ' ').lower()}"


def _problem_in_the_clear(place: Address, address: str) -> str:
    try:
        _shown(place, None)
    except ssl.SSLError as error:
        if not _is_alert(error):
            return ""
    return f"it speaks TLS, and {address} is an address in the clear: {_give(place, is_secure=True)}"


def _certificate_problem(error: ssl.SSLCertVerificationError, place: Address, tls: Tls, name: str) -> str:
    shown = _certificate(place, name)
    if error.verify_code == _EXPIRED:
        return f"its certificate expired on {shown['notAfter']}"
    if error.verify_code == _NOT_YET:
        return f"its certificate is not valid before {shown['notBefore']}"
    if error.verify_code in _WRONG_NAME:
        names = [value for _, value in shown.get("subjectAltName", ())]
        other = f"as with --tls-server-name {names[0]}" if names else "of which there is none"
        return f"its certificate is of {_listed(names)}, not of {name}: ask for a name that it has, {other}"
    if error.verify_code in _UNTRUSTED:
        who = f"who is not in {tls.ca}" if tls.ca else "whom this system does not trust"
        return f"its certificate was signed by {_told(shown['issuer'])}, {who}: give that authority's with --ca"
    return f"its certificate was not accepted: {error.verify_message}"


def _certificate(place: Address, name: str) -> dict[str, Any]:
    """Return the server's certificate, trusted or not."""
    # Python parses only trusted certificates. This context trusts the server's own certificate, only to read it.
    context = _context()
    context.load_verify_locations(cadata=_shown(place, name))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    with _connected(place) as plain, context.wrap_socket(plain, server_hostname=name) as secured:
        return dict(secured.getpeercert() or {})


def _shown(place: Address, name: str | None) -> bytes:
    """Return the server's certificate in DER form. Send no data to the unverified server."""
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
    if tls.cert is None:
        return "it ends the connection after the handshake: it may want a certificate of this client, --cert and --key"
    return f"it ends the connection after the handshake: it may not know the authority of --cert {tls.cert}"


def _refusal(error: OSError, tls: Tls) -> str:
    """Return the meaning of the server's alert, or an empty string if the error is not an alert."""
    if not isinstance(error, ssl.SSLError) or not _is_alert(error):
        return ""
    alert = (error.reason or "").partition("ALERT_")[2].replace("_", " ").lower()
    if alert == "no application protocol":
        return "it does not offer HTTP/2 over TLS (ALPN), which gRPC needs: is it a REST port?"
    if tls.cert is None and alert in ("certificate required", "handshake failure", "bad certificate"):
        return "it wants a certificate of this client: give --cert and --key"
    if tls.cert is not None and ("certificate" in alert or alert == "unknown ca"):
        return f"it does not accept the certificate of --cert {tls.cert}: {alert}"
    return f"it ended the TLS handshake: {alert or error.reason}"


def _is_alert(error: ssl.SSLError) -> bool:
    return "ALERT" in (error.reason or "")


def _connected(place: Address) -> socket.socket:
    return socket.create_connection(_host_and_port(place), _TIMEOUT_S)


def _host_and_port(place: Address) -> tuple[str, int]:
    parts = urlsplit(place.target if place.is_rest else f"//{place.target}")
    return parts.hostname or "", parts.port or (_HTTPS_PORT if place.is_secure else _HTTP_PORT)


def _give(place: Address, *, is_secure: bool) -> str:
    scheme = ("https" if is_secure else "http") if place.is_rest else ("grpcs" if is_secure else "grpc")
    rest = place.target.partition("://")[2] if place.is_rest else place.target
    return f"give {scheme}://{rest}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more or "no name"


def _told(name: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return the common name and organization of an X.509 name."""
    parts = {key: value for group in name for key, value in group}
    told = [parts[key] for key in ("commonName", "organizationName") if key in parts]
    return ", ".join(told) or str(parts)
