"""Tests for API keys and tokens: how they are sent, to which places, and what follows a refusal."""

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clients_under_test import make_client
from tests.clients.model_server import Failure, ModelServer, serving
from tests.support.certificates import Authority, ServerTls
from tpuserve_client import (
    AsyncClient,
    Attempt,
    Client,
    Code,
    InvalidArgument,
    KeyFile,
    PermissionDenied,
    Retry,
    Tls,
    TpuserveError,
    Unauthenticated,
)
from tpuserve_client.credentials import ApiKey
from tpuserve_client.settings import Settings

KEY = "tk_s3cr3t"
REFUSED = Failure(Code.UNAUTHENTICATED, "the key is unknown")
DENIED = Failure(Code.PERMISSION_DENIED, "ci has the roles read; this call needs predict")


def sent_keys(server: ModelServer) -> list[Any]:
    return [served.headers.get("authorization") for served in server.served]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["grpc", "rest", "oip-grpc", "oip-rest"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_request_carries_the_key(kind: str, address: str, server: ModelServer) -> None:
    with make_client(kind, address, api_key=KEY) as client:
        client.predict("single", [[[1, 2], [3, 4]]])  # fetches the metadata, too
        client.status("single")
        client.wait_until_ready(5)
    assert len(server.served) >= 3
    assert {key for key, served in zip(sent_keys(server), server.served, strict=True) if served.model} == {
        f"Bearer {KEY}"
    }


@pytest.mark.parametrize("make", [lambda key: lambda: key, lambda key: f"  {key}\n"])
def test_key_of_a_function_and_white_space_around_it(
    kind: str, address: str, server: ModelServer, make: Callable[[str], Any]
) -> None:
    with make_client(kind, address, api_key=make(KEY)) as client:
        client.status("single")
    assert sent_keys(server)[0] == f"Bearer {KEY}"


def test_coroutine_function_gives_the_key(address: str, server: ModelServer) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return KEY

    async def call() -> None:
        async with AsyncClient(address, api_key=token) as client:
            await client.status("single")

    asyncio.run(call())
    assert sent_keys(server)[0] == f"Bearer {KEY}"


def test_file_of_a_key_is_read_before_each_attempt(
    kind: str, address: str, server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("first\n")
    with make_client(kind, address, api_key=KeyFile(file)) as client:
        client.status("single")
        file.write_text("second\n")
        client.status("single")
        file.unlink()
        with pytest.raises(Unauthenticated, match=r"Cannot read the API key in .*: No such file"):
            client.status("single")
    assert sent_keys(server) == ["Bearer first", "Bearer second"]


def test_expired_token_is_replaced_once_even_without_retries(kind: str, address: str, server: ModelServer) -> None:
    tokens = iter(["expired", "fresh", "unused"])
    attempts: list[Attempt] = []
    server.failures.append(REFUSED)
    with make_client(
        kind, address, api_key=lambda: next(tokens), retry=Retry(max_attempts=1), on_attempt=attempts.append
    ) as client:
        assert client.status("single")
    assert sent_keys(server) == ["Bearer expired", "Bearer fresh"]
    assert [attempt.pause_s for attempt in attempts] == [0.0, None]


def test_two_refused_tokens_are_enough(kind: str, address: str, server: ModelServer) -> None:
    tokens = iter("abcdef")
    server.failures.extend([REFUSED] * 4)
    with (
        make_client(kind, address, api_key=lambda: next(tokens)) as client,
        pytest.raises(Unauthenticated, match="the key is unknown") as caught,
    ):
        client.status("single")
    assert sent_keys(server) == ["Bearer a", "Bearer b"]
    assert caught.value.attempts == 2


def test_probe_replaces_an_expired_token(kind: str, address: str, server: ModelServer) -> None:
    tokens = iter(["expired", "fresh"])
    server.failures.append(REFUSED)
    with make_client(kind, address, api_key=lambda: next(tokens)) as client:
        client.wait_until_ready(5, "single")
    assert sent_keys(server) == ["Bearer expired", "Bearer fresh"]


@pytest.mark.parametrize("failure", [REFUSED, DENIED])
@pytest.mark.parametrize("api_key", [KEY, lambda: KEY])
def test_refusals_of_an_unchanged_key_are_not_repeated(
    kind: str, address: str, server: ModelServer, failure: Failure, api_key: ApiKey
) -> None:
    server.failures.extend([failure] * 4)
    with make_client(kind, address, api_key=api_key) as client, pytest.raises(TpuserveError) as caught:
        client.status("single")
    assert (caught.value.code, caught.value.message, len(server.served)) == (failure.code, failure.message, 1)


@pytest.mark.parametrize(
    ("failure", "kind_of_error", "without", "with_key"),
    [
        (REFUSED, Unauthenticated, "Set api_key, or tls", "Check that the credentials are valid"),
        (DENIED, PermissionDenied, "Set api_key, or tls", "Use credentials whose roles and models include this call"),
    ],
)
def test_refusal_says_what_to_do(
    kind: str, address: str, server: ModelServer, failure: Failure, kind_of_error: type, without: str, with_key: str
) -> None:
    for options, advice in (({}, without), ({"api_key": KEY}, with_key), ({"headers": {"X-API-Key": KEY}}, with_key)):
        server.failures.append(failure)
        with make_client(kind, address, **options) as client, pytest.raises(kind_of_error, match=advice) as caught:
            client.status("single")
        assert KEY not in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_header_of_a_call_replaces_the_key(kind: str, address: str, server: ModelServer) -> None:
    for api_key in (KEY, lambda: KEY):
        with make_client(kind, address, api_key=api_key) as client:
            client.status("single", headers={"Authorization": "Basic other"})
    assert sent_keys(server) == ["Basic other"] * 2


def test_key_appears_in_no_text(kind: str, address: str, server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[Attempt] = []
    server.failures.append(REFUSED)
    with (
        caplog.at_level(logging.DEBUG),
        make_client(kind, address, api_key=KEY, on_attempt=attempts.append) as client,
        pytest.raises(Unauthenticated) as caught,
    ):
        client.status("single")
    settings = Settings(address, api_key=KEY, headers={"x-api-key": KEY})
    own = "".join(record.getMessage() for record in caplog.records)
    texts = [repr(client), repr(settings), repr(caught.value), str(caught.value), repr(attempts), own]
    with Client(address, api_key=KEY) as other:
        texts += [repr(other), repr(other.__getstate__())]
    for text in texts:
        assert KEY not in text


def test_pickled_client_keeps_its_key(address: str, server: ModelServer, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    for api_key in (KEY, KeyFile(file)):
        with Client(address, api_key=api_key) as client, pickle.loads(pickle.dumps(client)) as unpickled:
            unpickled.status("single")
            assert copy.copy(client).__getstate__() == client.__getstate__()
    assert sent_keys(server) == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize(
    ("place", "secure"),
    [
        ("models.example:8500", "grpcs://"),
        ("dns:///models.example:8500", "grpcs://"),
        ("10.0.0.1", "grpcs://"),
        ("0.0.0.0:8500", "grpcs://"),
        ("localhost.example:8500", "grpcs://"),
        ("http://models.example:8501", "https://"),
        ("http://user@127.0.0.1.example", "https://"),
        ("oip+http://[2001:db8::1]:8000", "https://"),
        ("localhost,models.example", "grpcs://"),
    ],
)
def test_key_does_not_cross_the_network_in_plaintext(kind: str, place: str, secure: str) -> None:
    with pytest.raises(InvalidArgument, match=f"in plaintext. Use {secure}, or set allow_plaintext_key=True") as caught:
        make_client(kind, place, api_key=KEY)
    assert KEY not in str(caught.value)
    with make_client(kind, place, api_key=KEY, allow_plaintext_key=True), make_client(kind, place):
        pass


@pytest.mark.parametrize(
    "place",
    [
        "localhost",
        "127.0.0.1:8500",
        "127.1.2.3:8500",
        "[::1]:8500",
        "unix:/run/tpuserve.sock",
        "http://LOCALHOST:8501",
        "oip+http://[::1]:8501",
        "grpcs://models.example",
        "https://models.example",
    ],
)
def test_encrypted_and_local_places_get_the_key(place: str) -> None:
    Client(place, api_key=KEY).close()


@pytest.mark.parametrize(
    ("variable", "place", "is_refused"),
    [
        ("http_proxy", "http://localhost:8501", True),
        ("ALL_PROXY", "http://127.0.0.1:8501", True),
        ("grpc_proxy", "localhost:8500", True),
        ("http_proxy", "localhost:8500", True),
        ("http_proxy", "unix:/run/tpuserve.sock", False),
        ("http_proxy", "grpcs://localhost", False),
        ("ftp_proxy", "http://localhost:8501", False),
    ],
)
def test_proxy_does_not_get_the_key_of_a_local_server(
    monkeypatch: pytest.MonkeyPatch, variable: str, place: str, is_refused: bool
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, "http://proxy.example:3128")
    if is_refused:
        with pytest.raises(InvalidArgument, match=f"proxy in {variable.lower()} would get the API key"):
            Client(place, api_key=KEY)
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    Client(place, api_key=KEY).close()


@pytest.mark.parametrize(
    ("api_key", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (f"Bearer {KEY}", "begins with Bearer"),
        (f"{KEY} {KEY}", "is not an API key"),
        (f"{KEY}\n{KEY}", "is not an API key"),
        (f"{KEY}é", "is not an API key"),
        (KEY.encode(), "must be a string, not bytes"),
        (5, "must be a string, not int"),
    ],
)
def test_other_values_are_no_keys(kind: str, address: str, server: ModelServer, api_key: Any, message: str) -> None:  # noqa: ANN401  wrong on purpose
    with pytest.raises(InvalidArgument, match=f"api_key {message}") as caught:
        make_client(kind, address, api_key=api_key)
    assert KEY not in str(caught.value)
    with (
        make_client(kind, address, api_key=lambda: api_key) as client,
        pytest.raises(InvalidArgument, match=f"The result of the function api_key {message}") as caught,
    ):
        client.status("single")
    assert KEY not in str(caught.value)
    assert server.served == []


def test_long_key_is_refused_like_long_headers(address: str) -> None:
    with pytest.raises(InvalidArgument, match="The maximum is 15,000"):
        Client(address, api_key="k" * 20_000)


def test_key_and_header_exclude_each_other(kind: str, address: str) -> None:
    with pytest.raises(InvalidArgument, match="api_key and the header authorization exclude each other"):
        make_client(kind, address, api_key=KEY, headers={"Authorization": "Bearer other"})


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"ci predict sha256:00\n", "is not an API key"), (b"\xff\xfe", "not a text file")],
)
def test_file_without_a_key_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        KeyFile(file)
    with pytest.raises(InvalidArgument, match="No such file"):
        KeyFile(tmp_path / "nowhere")


@pytest.mark.parametrize("protocol", ["grpc", "rest"], indirect=True)
def test_key_and_client_certificate_go_to_a_server_with_its_own_authority(
    kind: str, protocol: str, authority: Authority
) -> None:
    own, server = authority.issue("client@example.org"), ModelServer()
    tls = Tls(ca=authority.ca, cert=own.cert, key=own.key)
    with (
        serving(server, protocol, ServerTls(authority.server, authority.ca)) as address,
        make_client(kind, address, tls=tls, api_key=KEY) as client,
    ):
        client.status("single")
        server.failures.append(REFUSED)
        with pytest.raises(Unauthenticated, match="Check that the credentials are valid"):
            client.status("single")
    assert sent_keys(server) == [f"Bearer {KEY}"] * 2
