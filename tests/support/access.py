"""Keys, tokens and files of credentials for tests."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tpuserve_server.access.credentials import digest_of, make_key

ISSUER: Final = "https://issuer.example"
AUDIENCE: Final = "tpuserve"


@dataclass
class KeyFile:
    """A credentials file, and the keys of its clients by name."""

    path: Path
    keys: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, name: str, roles: str, models: str = "") -> str:
        """Add a client, and return its key."""
        self.keys[name] = key = make_key()
        self.lines.append(f"{name} {roles} sha256:{digest_of(key).hex()} {models}")
        self.write()
        return key

    def add_certificate(self, name: str, roles: str, reference: str) -> None:
        """Add a client with a certificate."""
        self.lines.append(f"{name} {roles} 'certificate:{reference}'")
        self.write()

    def write(self) -> None:
        self.path.write_text("# Clients of a test\n\n" + "\n".join(self.lines) + "\n")

    def bearer(self, name: str) -> dict[str, str]:
        """Return the header with a client's key."""
        return {"authorization": f"Bearer {self.keys[name]}"}


class TokenIssuer:
    """Issues tokens that keys in its JWKS verify."""

    def __init__(self, kind: str = "EC") -> None:
        self.private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
        self.algorithm = "ES256" if kind == "EC" else "RS256"
        if kind == "EC":
            self.private = ec.generate_private_key(ec.SECP256R1())
        else:
            self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def entry(self, kid: str | None = "one", **more: object) -> dict[str, Any]:
        """Return the public key as an entry of a JWKS."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        entry: dict[str, Any] = json.loads(algorithm.to_jwk(self.private.public_key()))
        return {**entry, **({} if kid is None else {"kid": kid}), **more}

    def jwks(self, kid: str | None = "one", **more: object) -> str:
        return json.dumps({"keys": [self.entry(kid, **more)]})

    def token(
        self,
        more: Mapping[str, object] | None = None,
        *,
        kid: str | None = "one",
        lifetime_s: float = 600.0,
        **claims: object,
    ) -> str:
        """Return a token with these claims in addition to those that a server requires. None omits a claim."""
        all_claims = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": "robot", "exp": time.time() + lifetime_s,
            **(more or {}), **claims,
        }  # fmt: skip
        wanted = {name: value for name, value in all_claims.items() if value is not None}
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(wanted, self.private, algorithm=self.algorithm, headers=headers)
