"""The secret of a request, an API key or a token, in the headers that clients send it in."""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from tpuserve_server.core.terms.errors import Unauthenticated

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
