"""The public keys of tokens, from a JWKS file (RFC 7517). The key decides the algorithms, never the token."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tpuserve_server.access.credentials import CredentialsError
from tpuserve_server.core.terms.errors import Unauthenticated

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
_MOST_SHOWN: Final = 64


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
