"""Authenticator: finds the identity of a client from its key, its token or its certificate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tpuserve_server.access.certificate import FindCertificate
from tpuserve_server.access.credentials import Credentials
from tpuserve_server.access.identity import Identity
from tpuserve_server.access.key import digest_of
from tpuserve_server.access.secret import find_secret
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
