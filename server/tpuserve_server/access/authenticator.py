"""Authenticator: finds the identity of a client from its key, its token or its certificate."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tpuserve_server.access.access import Identity
from tpuserve_server.access.credentials import Credentials, FindCertificate, digest_of
from tpuserve_server.access.tokens import MAX_TOKEN_BYTES, Tokens, looks_like_token
from tpuserve_server.core.terms.errors import Unauthenticated

_UNKNOWN_KEY: Final = "The API key is unknown to this server. The operator may have replaced it"
_NO_TOKENS: Final = "This server accepts API keys, but no tokens"


@dataclass(frozen=True, slots=True)
class KnownClients:
    """The credentials that the server accepts. `tokens` is None if it accepts none."""

    credentials: Credentials = field(default_factory=Credentials)
    tokens: Tokens | None = None


class Authenticator:
    """Identifies clients. Any thread may replace `known`; requests read it on the event loop."""

    def __init__(self, known: KnownClients, anonymous: Identity) -> None:
        """Begin with `known`. Clients without credentials are `anonymous`."""
        self.known = known
        self.anonymous = anonymous

    def identify(self, headers: Mapping[str, str], find_certificate: FindCertificate) -> Identity:
        """Return the identity of a request. A key or token goes before a certificate.

        Raises:
            Unauthenticated: the client sent a key or token that is not valid, even if it has a certificate.
        """
        known = self.known
        secret = find_secret(headers)
        if secret is not None:
            return _identify_secret(secret, known)
        certificates = known.credentials.certificates
        if certificates and (names := find_certificate()) is not None:
            return known.credentials.find_certificate(names) or self.anonymous
        return self.anonymous


def _identify_secret(secret: str, known: KnownClients) -> Identity:
    if not secret:
        raise Unauthenticated("The key or token is empty")
    if len(secret) > MAX_TOKEN_BYTES:
        raise Unauthenticated(f"A key or token may have at most {MAX_TOKEN_BYTES} bytes")
    digest = digest_of(secret)
    has_form = looks_like_token(secret)
    if has_form and known.tokens is not None and (seen := known.tokens.find(digest)) is not None:
        return seen
    identity = known.credentials.find_key(digest)
    if identity is not None:
        return identity
    if not has_form:
        raise Unauthenticated(_UNKNOWN_KEY)
    if known.tokens is None:
        raise Unauthenticated(_NO_TOKENS)
    return known.tokens.verify(secret, digest)


AUTHORIZATION: Final = "authorization"
# Behind a gateway that uses the other header for its own credentials.
API_KEY: Final = "x-api-key"
_BEARER, _BASIC = "bearer", "basic"
# The beginning that nearly all clients send.
_USUAL: Final = "Bearer "
_WAYS: Final = "Send a key or a token as 'authorization: Bearer …', or a key as 'x-api-key: …'"


def find_secret(headers: Mapping[str, str]) -> str | None:
    """Return the secret in the headers of a request, or None. The API_KEY header goes first.

    Raises:
        Unauthenticated: the other header has an unknown scheme, or its value is malformed.
    """
    key = headers.get(API_KEY)
    if key is not None:
        return key
    value = headers.get(AUTHORIZATION)
    if value is None:
        return None
    if value.startswith(_USUAL):
        return value[len(_USUAL) :].strip()
    scheme, _, secret = value.partition(" ")
    scheme = scheme.lower()
    if scheme == _BEARER:
        return secret.strip()
    if scheme == _BASIC:
        return _password(secret)
    raise Unauthenticated(f"The authorization header has an unknown scheme. {_WAYS}")


def _password(encoded: str) -> str:
    """Return the password (RFC 7617). Browsers ask for a user, too, which the server ignores."""
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode("latin-1")
    except (binascii.Error, ValueError):
        raise Unauthenticated("The Basic credentials in the authorization header are malformed") from None
    return decoded.partition(":")[2]
