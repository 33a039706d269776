"""The compact form of a token (RFC 7515, 7.1): its header, its claims, and the signature over both.

PyJWT verifies the signature. Its own reading of a token takes several times as long as that, because it reads the
header twice and the claims in general forms.
"""

import binascii
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

# base64url without padding. Python's decoder also takes other texts.
_FORM: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
_URL_TO_PLAIN: Final = str.maketrans("-_", "+/")
# Tokens of one key have one header. The sizes of tokens bound the memory.
_MOST_HEADERS: Final = 64


class TokenHeader(NamedTuple):
    """The algorithm that a token claims, and the id of its key, or None."""

    algorithm: str
    key_id: str | None


class CompactToken(NamedTuple):
    """A token whose signature is not verified. `signed` is the text that `signature` signs."""

    header: TokenHeader
    signed: bytes
    claims: str
    signature: bytes


def read_token(token: str) -> CompactToken:
    """Split a token, and read its header. Raises ValueError if it is malformed."""
    if _FORM.fullmatch(token) is None:
        raise ValueError("the form")
    signed, _, signature = token.rpartition(".")
    header, _, claims = signed.partition(".")
    return CompactToken(_read_header(header), signed.encode("ascii"), claims, _decode(signature))


def read_claims(token: CompactToken) -> dict[str, Any]:
    """Return the claims of a token whose signature is verified. Raises ValueError if they are no JSON object."""
    return _read_object(token.claims)


@lru_cache(maxsize=_MOST_HEADERS)
def _read_header(segment: str) -> TokenHeader:
    header = _read_object(segment)
    algorithm, key_id = header.get("alg"), header.get("kid")
    # An extension that a token marks as critical must be understood (RFC 7515, 4.1.11). There is none here.
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None) or "crit" in header:
        raise ValueError("the header")
    return TokenHeader(algorithm, key_id)


def _read_object(segment: str) -> dict[str, Any]:
    value = orjson.loads(_decode(segment))
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _decode(segment: str) -> bytes:
    """Decode base64url without padding (RFC 7515, 2). Raises ValueError, as binascii.Error is one."""
    padding = "=" * (-len(segment) % 4)
    return binascii.a2b_base64(segment.translate(_URL_TO_PLAIN) + padding, strict_mode=True)
