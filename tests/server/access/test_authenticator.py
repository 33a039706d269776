"""Tests for the headers that carry keys and tokens, and for what the rule makes of them."""

import base64
from contextvars import Context, copy_context
from pathlib import Path

import pytest

from tests.support.access import AUDIENCE, ISSUER, KeyFile, TokenIssuer
from tpuserve_server.access.access import CONTROL, OPEN, PREDICT, READ, READ_SERVER, Access, Identity, ModelNames, Role
from tpuserve_server.access.authenticator import Authenticator
from tpuserve_server.access.caller import find_caller, set_caller
from tpuserve_server.access.credentials import CertificateNames, no_certificate
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.access.options import IdentityOptions
from tpuserve_server.access.tokens import MAX_TOKEN_BYTES
from tpuserve_server.core.terms.errors import PermissionDenied, ServingError, Unauthenticated
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.guard import AccessRule, AllOf, Attempt, combined_rule
from tpuserve_server.protocols.options import ControlOptions
from tpuserve_server.storage.named_file import read_file

ISSUER_OF_TOKENS = TokenIssuer()
STRANGER = "10.1.2.3"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "credentials")
    file.add("alice", "read")
    file.add_certificate("robot", "read", "robot.example")
    return file


@pytest.fixture
def authenticator(keys: KeyFile, tmp_path: Path) -> Authenticator:
    jwks = tmp_path / "jwks"
    jwks.write_text(ISSUER_OF_TOKENS.jwks())
    options = IdentityOptions(keys.path, jwks, ISSUER, AUDIENCE, anonymous_roles=("predict",))
    return CredentialFiles(options, read_file).authenticator


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def test_a_key_comes_in_one_of_two_headers(authenticator: Authenticator, keys: KeyFile) -> None:
    key = keys.keys["alice"]
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"authorization": f"BEARER   {key} "},
        {"authorization": basic(f"anyone:{key}")},
        {"authorization": basic(f":{key}")},
        {"x-api-key": key},
        {"x-api-key": key, "authorization": "Negotiate of a gateway"},
    ):
        assert authenticator.identify(headers, no_certificate).name == "alice", headers


def test_a_token_comes_in_the_same_headers(authenticator: Authenticator) -> None:
    token = ISSUER_OF_TOKENS.token()
    for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}, {"authorization": basic(f"u:{token}")}):
        assert authenticator.identify(headers, no_certificate).name == "robot"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"authorization": "Bearer wrong"}, "The API key is unknown"),
        ({"authorization": "Bearer "}, "The key or token is empty"),
        ({"authorization": basic(":")}, "The key or token is empty"),
        ({"authorization": ""}, "unknown scheme"),
        ({"authorization": "Negotiate abc"}, "unknown scheme"),
        ({"authorization": "tpuserve_key"}, "unknown scheme"),
        ({"authorization": "Basic ???"}, "malformed"),
        ({"authorization": "Basic ä"}, "malformed"),
        ({"authorization": basic("without a colon")}, "The key or token is empty"),
        ({"x-api-key": ""}, "The key or token is empty"),
        ({"x-api-key": "a,b"}, "The API key is unknown"),
        ({"x-api-key": "x" * (MAX_TOKEN_BYTES + 1)}, f"at most {MAX_TOKEN_BYTES} bytes"),
        ({"authorization": "Bearer " + "x." * MAX_TOKEN_BYTES}, f"at most {MAX_TOKEN_BYTES} bytes"),
        ({"authorization": "Bearer a.b.c"}, "The token is malformed"),
    ],
)
def test_a_wrong_credential_is_refused_even_where_none_is_needed(
    authenticator: Authenticator, headers: dict[str, str], reason: str
) -> None:
    with pytest.raises(Unauthenticated, match=reason):
        authenticator.identify(headers, lambda: CertificateNames(dns=("robot.example",)))


def test_a_server_without_tokens_says_so(keys: KeyFile) -> None:
    authenticator = CredentialFiles(IdentityOptions(keys.path), read_file).authenticator
    with pytest.raises(Unauthenticated, match="accepts API keys, but no tokens"):
        authenticator.identify({"x-api-key": ISSUER_OF_TOKENS.token()}, no_certificate)


def test_a_certificate_is_read_only_without_a_key(authenticator: Authenticator, keys: KeyFile) -> None:
    def names() -> CertificateNames:
        return CertificateNames(dns=("robot.example",))

    assert authenticator.identify({}, names).name == "robot"
    assert authenticator.identify({"x-api-key": keys.keys["alice"]}, names).name == "alice"
    assert authenticator.identify({}, lambda: CertificateNames(dns=("x.example",))) is authenticator.anonymous
    assert authenticator.identify({}, no_certificate) is authenticator.anonymous


@pytest.mark.parametrize(
    ("identity", "access", "error", "message"),
    [
        (Identity("", frozenset()), READ, Unauthenticated, "/path needs a credential with the role read"),
        (
            Identity("a", frozenset()),
            READ,
            PermissionDenied,
            "The client 'a' has no role, but /path needs the role read",
        ),
        (
            Identity("a", frozenset((Role.PREDICT, Role.READ))),
            CONTROL,
            PermissionDenied,
            "The client 'a' has the roles predict and read, but /path needs the role control",
        ),
        (
            Identity("a", frozenset(Role), ModelNames(["m"])),
            READ_SERVER,
            PermissionDenied,
            "The client 'a' may use only some models, but /path concerns all of them",
        ),
    ],
)
def test_a_refusal_names_the_client_its_roles_and_the_role(
    identity: Identity, access: Access, error: type[ServingError], message: str
) -> None:
    with pytest.raises(error) as caught:
        identity.require(access, "/path")
    assert caught.value.message == message


async def test_the_rule_sets_the_caller_before_it_refuses(authenticator: Authenticator, keys: KeyFile) -> None:
    rule = AccessRule(authenticator)
    with pytest.raises(PermissionDenied):
        await rule.check(Attempt("rest", "POST", "/p", {"x-api-key": keys.keys["alice"]}, PREDICT))
    caller = find_caller()
    assert caller is not None
    assert caller.name == "alice"
    await rule.check(Attempt("rest", "GET", "/healthz", {"x-api-key": "wrong"}, OPEN))
    assert find_caller() is authenticator.anonymous


async def test_a_wrong_credential_forgets_the_caller_of_the_request_before(
    authenticator: Authenticator, keys: KeyFile
) -> None:
    """Requests of one HTTP/1 connection may share a context, and the access log shows its caller."""
    rule = AccessRule(authenticator)
    await rule.check(Attempt("rest", "GET", "/metrics", {"x-api-key": keys.keys["alice"]}, OPEN))
    with pytest.raises(Unauthenticated):
        await rule.check(Attempt("rest", "GET", "/metrics", {"x-api-key": "wrong"}, READ))
    assert find_caller() is authenticator.anonymous


async def test_rules_are_checked_in_order(authenticator: Authenticator) -> None:
    seen: list[str] = []

    class Other:
        async def check(self, attempt: Attempt) -> None:
            seen.append(attempt.path)

    assert combined_rule(None, None) is None
    rule = combined_rule(authenticator, Other())
    assert isinstance(rule, AllOf)
    with pytest.raises(Unauthenticated):
        await rule.check(Attempt("rest", "GET", "/read", {}, READ))
    await rule.check(Attempt("rest", "POST", "/predict", {}, PREDICT))
    assert seen == ["/predict"]


@pytest.fixture
def context() -> Context:
    return copy_context()


@pytest.mark.parametrize(
    ("identity", "client", "error"),
    [
        (None, "127.0.0.1", None),
        (None, STRANGER, PermissionDenied),
        (Identity("a", frozenset((Role.CONTROL,))), STRANGER, None),
        (Identity("a", frozenset((Role.READ,))), "127.0.0.1", PermissionDenied),
        (Identity("", frozenset((Role.CONTROL,))), "127.0.0.1", None),
        (Identity("", frozenset((Role.CONTROL,))), STRANGER, PermissionDenied),
        (Identity("", frozenset()), "127.0.0.1", Unauthenticated),
    ],
)
def test_a_credential_replaces_the_rule_of_addresses(
    context: Context, identity: Identity | None, client: str, error: type[ServingError] | None
) -> None:
    def check() -> None:
        if identity is not None:
            set_caller(identity)
        Control(ControlOptions()).check(client)

    if error is None:
        context.run(check)
    else:
        with pytest.raises(error):
            context.run(check)


@pytest.mark.parametrize(("roles", "may"), [((Role.CONTROL, Role.READ), True), ((Role.READ,), False)])
def test_a_page_of_another_site_cannot_use_the_password_of_a_browser(
    context: Context, roles: tuple[Role, ...], may: bool
) -> None:
    scope = {"client": (STRANGER, 5), "headers": [(b"host", b"models.example"), (b"sec-fetch-site", b"same-origin")]}
    foreign = {**scope, "headers": [(b"host", b"models.example"), (b"origin", b"https://evil.example")]}
    control = Control(ControlOptions())

    def check() -> tuple[bool, bool]:
        set_caller(Identity("a", frozenset(roles)))
        return control.may_control(scope), control.may_control(foreign)

    assert context.run(check) == (may, False)
