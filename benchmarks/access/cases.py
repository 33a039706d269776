"""Cases of the access benchmark: the guard's rule, with the headers that clients of each protocol send."""

import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tpuserve_server.access.access import PREDICT, Identity
from tpuserve_server.access.authenticator import Authenticator, KnownClients
from tpuserve_server.access.credentials import digest_of, make_key, parse_credentials
from tpuserve_server.access.tokens import TokenRules, Tokens, parse_jwks
from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.protocols.guard import AccessRule, Attempt
from tpuserve_server.protocols.raw_headers import RawHeaders

_ISSUER, _AUDIENCE = "https://issuer.example", "tpuserve"
_KEYS: Final = 1000
_CHEAP, _DEAR = 20_000, 500
_GRPC: Final = (
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/tensorflow.serving.PredictionService/Predict"),
    (b":authority", b"server:8500"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-python/1.80.0 grpc-c/50.0.0 (linux; chttp2)"), (b"grpc-accept-encoding", b"identity, gzip"),
    (b"x-tpuserve-arrived", b"1795683000.123456"),
)  # fmt: skip
_REST: Final = (
    (b"host", b"server:8501"), (b"accept", b"*/*"), (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"), (b"user-agent", b"python-httpx/0.28.1"), (b"content-length", b"512"),
    (b"content-type", b"application/json"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Clients:
    """The rule of a server, and what clients send. The tokens of a kind differ in their id alone."""

    rule: AccessRule
    key: str
    tokens: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of request. `measure` returns the CPU of the rule for one request in microseconds."""

    name: str
    measure: Callable[[Clients], float]
    limit_us: float | None = None


def make_clients() -> Clients:
    """Return clients of a server with many keys."""
    keys = [make_key() for _ in range(_KEYS)]
    text = "".join(f"c{number} predict,read sha256:{digest_of(key).hex()}\n" for number, key in enumerate(keys))
    private: dict[str, Any] = {
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    entries = [
        {**json.loads(jwt.get_algorithm_by_name(name).to_jwk(key.public_key())), "kid": name}
        for name, key in private.items()
    ]
    tokens = Tokens(parse_jwks(json.dumps({"keys": entries})), TokenRules(_ISSUER, _AUDIENCE, "roles", None))
    known = KnownClients(parse_credentials(text), tokens)
    return Clients(
        AccessRule(Authenticator(known, Identity("", frozenset()))),
        keys[_KEYS // 2],
        {name: [_token(name, key, number) for number in range(_DEAR)] for name, key in private.items()},
    )


def _token(algorithm: str, key: Any, number: int) -> str:  # noqa: ANN401 - a private key of any kind
    claims = {
        "iss": _ISSUER, "aud": _AUDIENCE, "sub": "robot@project.example", "exp": time.time() + 3600,
        "iat": time.time(), "jti": str(number), "roles": ["predict", "read"], "email": "robot@project.example",
    }  # fmt: skip
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": algorithm})


def _key_on_grpc(clients: Clients) -> float:
    metadata = _metadata(clients.key)
    return _cpu_us(clients, lambda _: _grpc_attempt(metadata), _CHEAP)


def _key_on_rest(clients: Clients) -> float:
    headers = (*_REST, (b"authorization", f"Bearer {clients.key}".encode()))
    return _cpu_us(clients, lambda _: _rest_attempt(headers), _CHEAP)


def _first(algorithm: str) -> Callable[[Clients], float]:
    def measure(clients: Clients) -> float:
        known = clients.rule.authenticator.known
        assert known.tokens is not None
        known.tokens.forget()
        metadata = [_metadata(token) for token in clients.tokens[algorithm]]
        return _cpu_us(clients, lambda number: _grpc_attempt(metadata[number]), _DEAR)

    return measure


def _again(clients: Clients) -> float:
    metadata = _metadata(clients.tokens["RS256"][0])
    return _cpu_us(clients, lambda _: _grpc_attempt(metadata), _CHEAP)


def _metadata(secret: str) -> Metadata:
    """Return the metadata of a call. A host creates it for every call, with or without a rule."""
    return Metadata((*_GRPC, (b"authorization", f"Bearer {secret}".encode())))


def _grpc_attempt(metadata: Metadata) -> Attempt:
    return Attempt("grpc", "POST", "/tensorflow.serving.PredictionService/Predict", metadata, PREDICT)


def _rest_attempt(headers: tuple[tuple[bytes, bytes], ...]) -> Attempt:
    return Attempt("rest", "POST", "/v1/models/m:predict", RawHeaders(headers), PREDICT, "m")


def _cpu_us(clients: Clients, make: Callable[[int], Attempt], count: int) -> float:
    """Return the CPU of a check in microseconds, with the search of the headers."""
    check = clients.rule.check
    before_s = time.process_time()
    for number in range(count):
        _run(check(make(number)))
    return 1e6 * (time.process_time() - before_s) / count


def _run(check: Coroutine[Any, Any, None]) -> None:
    """Run a check to its end. It waits for nothing."""
    try:
        check.send(None)
    except StopIteration:
        return
    raise AssertionError("the rule waited")


CASES: Final = (
    Case("API key, gRPC", _key_on_grpc, 5.0),
    Case("API key, REST", _key_on_rest, 5.0),
    Case("token seen before, gRPC", _again, 5.0),
    Case("first token, RS256", _first("RS256"), 60.0),
    Case("first token, ES256", _first("ES256")),
    Case("first token, EdDSA", _first("EdDSA")),
)
