"""Tokens: verifies the tokens (JWT, RFC 7519) of clients, and remembers those that it has verified.

Their public keys come from a JWKS file (RFC 7517). The key decides the algorithms, never the token.
"""

import binascii
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from tpuserve_server.access.access import ROLES, Identity, ModelNames, Role
from tpuserve_server.access.credentials import CredentialsError
from tpuserve_server.core.terms.errors import Unauthenticated

MAX_TOKEN_BYTES: Final = 8192
# Verified tokens that the server remembers. One takes less than a kilobyte.
MAX_REMEMBERED: Final = 4096
# Difference between the clocks of the issuer and of this server.
LEEWAY_S: Final = 30.0
_MOST_SHOWN: Final = 64
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have, and those with its roles and models. See IdentityOptions."""

    issuer: str
    audience: str
    role_claim: str
    model_claim: str | None


class Tokens:
    """Verifies tokens with one set of keys. The event loop's thread owns it."""

    def __init__(self, keys: "Mapping[str, TokenKey]", rules: TokenRules, now: Callable[[], float] = time.time) -> None:
        """Accept tokens that one of `keys` has signed. `now` returns the seconds since 1970."""
        self._keys = keys
        self._rules = rules
        self._now = now
        # The end of a token and its identity, by the token's SHA-256, the oldest first.
        self._verified: dict[bytes, tuple[float, Identity]] = {}

    def find(self, digest: bytes) -> Identity | None:
        """Return the identity of a token that was verified before and has not expired, by its SHA-256."""
        found = self._verified.get(digest)
        if found is None:
            return None
        if found[0] <= self._now():
            del self._verified[digest]
            return None
        return found[1]

    def forget(self) -> None:
        """Forget the verified tokens."""
        self._verified.clear()

    def verify(self, token: str, digest: bytes) -> Identity:
        """Verify a token and return its identity. Takes less than 0.1 ms, most of it for the signature.

        Raises:
            Unauthenticated: the token is not valid. The message says why, without the token.
        """
        claims = self._verified_claims(token)
        self._check_origin(claims)
        expires_s = self._check_times(claims)
        identity = Identity(_name_of(claims), self._roles(claims), self._models(claims))
        if len(self._verified) >= MAX_REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = (expires_s, identity)
        return identity

    def _verified_claims(self, token: str) -> dict[str, Any]:
        try:
            compact = read_token(token)
            self._find_key(compact.header).verify(compact.header.algorithm, compact.signed, compact.signature)
            return _read_object(compact.claims)
        except ValueError:
            raise Unauthenticated("The token is malformed") from None

    def _find_key(self, header: "TokenHeader") -> "TokenKey":
        """Return the key that a token names. A token without a name means the only key."""
        if header.key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(header.key_id or "")
        if key is None:
            raise Unauthenticated("The token's key is unknown to this server. It may be new: the JWKS file lacks it")
        return key

    def _check_origin(self, claims: Mapping[str, Any]) -> None:
        """Check who issued a token, and for whom. Raises Unauthenticated."""
        rules = self._rules
        if claims.get("iss") != rules.issuer:
            raise Unauthenticated(f"The token has another issuer, expected {rules.issuer}")
        audience = claims.get("aud")
        if audience != rules.audience and not (isinstance(audience, list) and rules.audience in audience):
            raise Unauthenticated(f"The token is for another audience, expected {rules.audience}")

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """Return the end of a token in seconds since 1970. Raises Unauthenticated for another time than now."""
        now_s = self._now()
        expires_s = _seconds(claims, "exp") + LEEWAY_S
        if expires_s <= now_s:
            raise Unauthenticated(f"The token has expired at {_shown_time(expires_s - LEEWAY_S)}")
        if "nbf" in claims and (begins_s := _seconds(claims, "nbf")) - LEEWAY_S > now_s:
            raise Unauthenticated(f"The token is valid from {_shown_time(begins_s)} on")
        return expires_s

    def _roles(self, claims: Mapping[str, Any]) -> frozenset[Role]:
        """Return the roles of a token. The claim may also have roles of other services."""
        return frozenset([ROLES[name] for name in _words(claims, self._rules.role_claim) if name in ROLES])

    def _models(self, claims: Mapping[str, Any]) -> ModelNames | None:
        claim = self._rules.model_claim
        return None if claim is None else ModelNames(_words(claims, claim))


def looks_like_token(secret: str) -> bool:
    """Return whether a secret has the form of a token. Keys have no dots."""
    return secret.count(".") == 2


def _words(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the texts of a claim. `path` is its name, or names that lead into objects."""
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if value is None:
        raise Unauthenticated(f"The token has no claim {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise Unauthenticated(f"The token's claim {name} is no time")
    return float(value)


def _shown_time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime(_TIME) if 0 <= unix_s < 2.5e11 else "a far time"


def _name_of(claims: Mapping[str, Any]) -> str:
    """Return the subject of a token, in a form for logs."""
    name = "".join(each if each.isprintable() else "?" for each in str(claims.get("sub", "")))
    return name[:_MOST_SHOWN] or "token"


# Algorithms of a key that names none (RFC 7518, 3.1; RFC 8037), all of them asymmetric.
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_BY_CURVE: Final[Mapping[str, tuple[str, ...]]] = {
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
    "Ed448": ("EdDSA",),
}
_SYMMETRIC: Final = "oct"


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A public key, and PyJWT's algorithms of the tokens that it verifies, by name."""

    key: Any  # a public key of the package cryptography
    algorithms: Mapping[str, Any]

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> None:
        """Check the signature of a token that claims `algorithm`. Raises Unauthenticated."""
        verifier = self.algorithms.get(algorithm)
        if verifier is None:
            raise Unauthenticated(
                f"The token's algorithm is {algorithm[:_MOST_SHOWN]!r}, but its key has {', '.join(self.algorithms)}"
            )
        if not verifier.verify(signed, self.key, signature):
            raise Unauthenticated("The token's signature is wrong")


def parse_jwks(text: str) -> dict[str, TokenKey]:
    """Return the keys of a JWKS by their id; "" for a key without one. Keys for encryption are omitted.

    Raises:
        CredentialsError: the text is no JWKS, has a symmetric or an unusable key, or has no key.
    """
    try:
        document = json.loads(text)
        entries = document["keys"]
        keys = [_parse_key(entry) for entry in entries if entry.get("use", "sig") == "sig"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CredentialsError("it is no JWKS: expected a JSON object with a list of keys") from None
    if not keys:
        raise CredentialsError("the JWKS has no key for signatures")
    by_id = dict(keys)
    if len(by_id) < len(keys):
        raise CredentialsError("two keys of the JWKS have one kid, or two have none")
    return by_id


def _parse_key(entry: Mapping[str, Any]) -> tuple[str, TokenKey]:
    # Loaded for the first JWKS, because it takes 0.1 s and an extra of the distribution has it.
    try:
        from jwt import PyJWK, get_algorithm_by_name
        from jwt.exceptions import PyJWKError, PyJWTError
    except ImportError:
        raise CredentialsError("tokens need the extra jwt: pip install 'tpuserve-server[jwt]'") from None
    name = str(entry.get("kid", ""))
    shown = f"key {name[:_MOST_SHOWN]!r} of the JWKS"
    if entry["kty"] == _SYMMETRIC or "d" in entry:
        raise CredentialsError(
            f"{shown} is secret or private. Only public keys are safe in a file that verifies tokens"
        )
    algorithms = _algorithms(entry, shown)
    try:
        verifiers = {each: get_algorithm_by_name(each) for each in algorithms}
        return name, TokenKey(PyJWK(dict(entry), algorithms[0]).key, verifiers)
    except (PyJWKError, PyJWTError) as error:
        raise CredentialsError(f"{shown} cannot be used: {error}") from None


def _algorithms(entry: Mapping[str, Any], shown: str) -> tuple[str, ...]:
    possible = _RSA if entry["kty"] == "RSA" else _BY_CURVE.get(str(entry.get("crv")), ())
    named = entry.get("alg")
    if not possible:
        raise CredentialsError(f"{shown} has an unsupported type: {str(entry['kty'])[:_MOST_SHOWN]!r}")
    if named is not None and named not in possible:
        raise CredentialsError(
            f"{shown} has the algorithm {str(named)[:_MOST_SHOWN]!r}, expected one of {', '.join(possible)}"
        )
    return possible if named is None else (named,)


# The compact form of a token (RFC 7515, 7.1): its header, its claims, and the signature over both.
#
# PyJWT verifies the signature. Its own reading of a token takes several times as long as that, because it reads the
# header twice and the claims in general forms.

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
