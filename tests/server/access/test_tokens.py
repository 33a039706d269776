"""Tests for tokens: PyJWT issues them, as an identity provider does."""

import base64
import json
import time
from collections.abc import Callable

import jwt
import pytest

from tests.support.access import AUDIENCE, ISSUER, TokenIssuer
from tpuserve_server.access.access import Identity, Role
from tpuserve_server.access.credentials import CredentialsError, digest_of
from tpuserve_server.access.tokens import LEEWAY_S, TokenRules, Tokens, looks_like_token, parse_jwks
from tpuserve_server.core.terms.errors import Unauthenticated

RULES = TokenRules(ISSUER, AUDIENCE, "roles", None)
EC, RSA = TokenIssuer("EC"), TokenIssuer("RSA")


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def verify(token: str, rules: TokenRules = RULES, jwks: str | None = None, clock: Clock | None = None) -> Identity:
    return Tokens(parse_jwks(jwks or EC.jwks()), rules, clock or Clock()).verify(token, digest_of(token))


def segment(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def altered(token: str, header: object = None, claims: object = None) -> str:
    """Return a token with another header or other claims, and the signature of the first."""
    parts = token.split(".")
    return ".".join(
        (parts[0] if header is None else segment(header), parts[1] if claims is None else segment(claims), parts[2])
    )


@pytest.mark.parametrize("issuer", [EC, RSA])
def test_a_token_is_a_client_with_roles(issuer: TokenIssuer) -> None:
    identity = verify(issuer.token(roles=["read", "predict", "admin"]), jwks=issuer.jwks())
    assert (identity.name, identity.roles, identity.models) == ("robot", frozenset((Role.READ, Role.PREDICT)), None)


@pytest.mark.parametrize(
    ("claims", "rules", "roles"),
    [
        ({"roles": "read  control"}, RULES, {Role.READ, Role.CONTROL}),
        ({"realm_access": {"roles": ["read"]}}, TokenRules(ISSUER, AUDIENCE, "realm_access.roles", None), {Role.READ}),
        ({"https://x.example/r": ["read"]}, TokenRules(ISSUER, AUDIENCE, "https://x.example/r", None), {Role.READ}),
        ({}, RULES, set()),
        ({"roles": {"read": True}}, RULES, set()),
        ({"roles": [["read"], 1, None]}, RULES, set()),
        ({"roles": "READ"}, RULES, set()),
    ],
)
def test_roles_come_from_a_claim(claims: dict[str, object], rules: TokenRules, roles: set[Role]) -> None:
    assert verify(EC.token(claims), rules).roles == roles


def test_models_come_from_a_claim_and_without_it_there_are_none() -> None:
    rules = TokenRules(ISSUER, AUDIENCE, "roles", "models")
    some = verify(EC.token(models=["digits", "shop-*"]), rules)
    assert [some.allows(name) for name in ("digits", "shop-1", "m")] == [True, True, False]
    assert not verify(EC.token(), rules).allows("m")


def test_an_audience_may_be_one_of_several() -> None:
    assert verify(EC.token(aud=["other", AUDIENCE])).name == "robot"


# Each case issues its token in the test, because tokens age.
@pytest.mark.parametrize(
    ("issue", "reason"),
    [
        (lambda: EC.token(lifetime_s=-3600), r"The token has expired at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        (lambda: EC.token(nbf=time.time() + 3600), "The token is valid from 20"),
        (lambda: EC.token(iss="https://evil.example"), f"another issuer, expected {ISSUER}"),
        (lambda: EC.token(iss=None), "another issuer"),
        (lambda: EC.token(aud="others"), f"another audience, expected {AUDIENCE}"),
        (lambda: EC.token(aud=["others"]), "another audience"),
        (lambda: EC.token(aud=None), "another audience"),
        (lambda: EC.token(exp=None), "The token has no claim exp"),
        (lambda: EC.token(kid="two"), "The token's key is unknown"),
        (lambda: TokenIssuer("EC").token(), "The token's signature is wrong"),
        (
            lambda: altered(EC.token(), claims={"iss": ISSUER, "aud": AUDIENCE, "exp": 9e9}),
            "The token's signature is wrong",
        ),
        (
            lambda: altered(EC.token(), header={"alg": "none", "kid": "one"}),
            "algorithm is 'none', but its key has ES256",
        ),
        (lambda: altered(EC.token(), header={"alg": "HS256", "kid": "one"}), "algorithm is 'HS256'"),
        (lambda: altered(EC.token(), header={"alg": "RS256", "kid": "one"}), "algorithm is 'RS256'"),
        (lambda: altered(EC.token(), header={"alg": "ES256", "kid": "one", "crit": ["x"]}), "malformed"),
        (lambda: altered(EC.token(), header={"alg": 5, "kid": "one"}), "malformed"),
        (lambda: altered(EC.token(), header={"alg": "ES256", "kid": ["one"]}), "malformed"),
        (lambda: altered(EC.token(), header=["ES256"]), "malformed"),
        (lambda: altered(EC.token(), header=b"[" * 3000), "malformed"),
        (lambda: EC.token() + "=", "malformed"),
        (lambda: EC.token() + "!", "malformed"),
        (lambda: EC.token().rpartition(".")[0] + ".", "signature is wrong"),
        (lambda: "..", "malformed"),
        (lambda: "a.b.c", "malformed"),
        (lambda: "ä.b.c", "malformed"),
    ],
)
def test_other_tokens_are_refused_with_the_reason(issue: Callable[[], str], reason: str) -> None:
    token = issue()
    with pytest.raises(Unauthenticated, match=reason) as error:
        verify(token)
    assert len(token) < 10 or token.rpartition(".")[2] not in error.value.message or not token.rpartition(".")[2]


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused() -> None:
    pem = json.dumps(RSA.entry()).encode()
    forged = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60, "roles": ["control"]},
        pem + bytes(32),
        algorithm="HS256",
        headers={"kid": "one"},
    )
    with pytest.raises(Unauthenticated, match="algorithm is 'HS256'"):
        verify(forged, jwks=RSA.jwks())


@pytest.mark.parametrize("exp", ["soon", True, 1e300, -1e300, {}])
def test_an_end_that_is_no_time_is_refused(exp: object) -> None:
    with pytest.raises(Unauthenticated, match="claim exp is no time"):
        verify(_signed({"iss": ISSUER, "aud": AUDIENCE, "exp": exp}))


@pytest.mark.parametrize("exp", [-9e11, -62135596801, -1])
def test_an_end_before_all_times_is_refused(exp: float) -> None:
    with pytest.raises(Unauthenticated, match="expired at a far time"):
        verify(_signed({"iss": ISSUER, "aud": AUDIENCE, "exp": exp}))


@pytest.mark.parametrize("claims", [b"[]", b"5", b"{", b'{"exp": NaN}', b"\xff", b'{"a":' * 3000])
def test_claims_that_are_no_object_are_refused(claims: bytes) -> None:
    with pytest.raises(Unauthenticated, match="malformed"):
        verify(_signed(claims))


def _signed(claims: object) -> str:
    """Return a token with any claims, signed as PyJWT would not."""
    signed = f"{segment({'alg': 'ES256', 'kid': 'one'})}.{segment(claims)}"
    algorithm = jwt.get_algorithm_by_name("ES256")
    return f"{signed}.{segment(algorithm.sign(signed.encode(), EC.private))}"


def test_a_token_is_remembered_until_it_expires() -> None:
    clock = Clock()
    tokens = Tokens(parse_jwks(EC.jwks()), RULES, clock)
    token = EC.token(lifetime_s=100, roles="read")
    digest = digest_of(token)
    assert tokens.find(digest) is None
    identity = tokens.verify(token, digest)
    assert tokens.find(digest) is identity
    clock.now_s += 100 + LEEWAY_S - 5
    assert tokens.find(digest) is identity
    clock.now_s += 10
    assert tokens.find(digest) is None
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.verify(token, digest)


def test_few_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpuserve_server.access.tokens.MAX_REMEMBERED", 3)
    tokens, token = Tokens(parse_jwks(EC.jwks()), RULES), EC.token()
    for number in range(5):
        tokens.verify(token, b"%d" % number)
    assert [tokens.find(b"%d" % number) is not None for number in range(5)] == [False, False, True, True, True]


def test_a_name_fits_a_log() -> None:
    assert verify(EC.token(sub="x" * 1000)).name == "x" * 64
    assert verify(EC.token(sub="a\nb\x1b")).name == "a?b?"
    assert verify(EC.token(sub=None)).name == "token"


def test_keys_have_no_form_of_a_token() -> None:
    assert looks_like_token(EC.token())
    assert not looks_like_token("tpuserve_abc")


def test_a_token_without_an_id_means_the_only_key() -> None:
    assert verify(EC.token(kid=None), jwks=EC.jwks(kid=None)).name == "robot"
    assert verify(EC.token(kid=None)).name == "robot"
    two = json.dumps({"keys": [EC.entry("one"), RSA.entry("two")]})
    assert verify(RSA.token(kid="two"), jwks=two).name == "robot"
    with pytest.raises(Unauthenticated, match="key is unknown"):
        verify(EC.token(kid=None), jwks=two)


def test_keys_for_encryption_are_omitted() -> None:
    both = json.dumps({"keys": [RSA.entry("two", use="enc"), EC.entry("one", use="sig", alg="ES256")]})
    assert list(parse_jwks(both)) == ["one"]


@pytest.mark.parametrize(
    ("jwks", "reason"),
    [
        ("", "it is no JWKS"),
        ("[]", "it is no JWKS"),
        ('{"keys": 5}', "it is no JWKS"),
        ('{"keys": ["x"]}', "it is no JWKS"),
        ('{"keys": [{}]}', "it is no JWKS"),
        ('{"keys": []}', "the JWKS has no key for signatures"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}]}', "key 's' of the JWKS is secret or private"),
        (EC.jwks(d="AAAA"), "key 'one' of the JWKS is secret or private"),
        (EC.jwks(alg="HS256"), "has the algorithm 'HS256', expected one of ES256"),
        (EC.jwks(alg="none"), "has the algorithm 'none'"),
        (EC.jwks(crv="secp256k1"), "unsupported type"),
        (EC.jwks(x="AAAA"), "cannot be used"),
        (json.dumps({"keys": [EC.entry("one"), RSA.entry("one")]}), "two keys of the JWKS have one kid"),
    ],
)
def test_a_bad_jwks_is_refused(jwks: str, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason):
        parse_jwks(jwks)
