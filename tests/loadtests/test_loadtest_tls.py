"""Tests for `tpuserve loadtest` over TLS, and for headers whose values reach only the server."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from tests.clients.model_server import ModelServer
from tests.clients.model_server import serving as serving_models
from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.locust_process import LOCUST, LOCUSTFILE
from tests.support import forked_command
from tests.support.certificates import Authority, ServerTls
from tests.support.free_ports import free_ports
from tpuserve_client import Tls, handshake
from tpuserve_client.address import parse_address
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.monitoring import page_access
from tpuserve_loadtests.cli.options import AccessOptions, ServerOptions
from tpuserve_loadtests.requests.protocols import client_address
from tpuserve_loadtests.rollout.model_service import ModelService

COMMAND = str(Path(sys.executable).with_name("tpuserve-loadtest"))
BRIEF = ["--users", "4", "--duration", "500ms", "--warm-up", "0", "--generator-limit", "note"]
TOKEN = "s3cr3t-token"
BEARER = "authorization: Bearer ${TOKEN}"
NOTHING = AccessOptions(
    ca=None, cert=None, key=None, tls_server_name=None, headers=(), api_key_file=None, allow_plaintext_key=False
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Doubling]:
    """Serve a model that requires a client certificate and a token."""
    with serving(Doubling(token=TOKEN, tls=ServerTls(authority.server, authority.ca))) as model:
        yield model


@pytest.fixture(scope="module")
def identity(authority: Authority) -> list[str]:
    own = authority.issue("client@example.org")
    return ["--ca", str(authority.ca), "--cert", str(own.cert), "--key", str(own.key)]


def run(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", *arguments, variables={"TOKEN": TOKEN}, timeout_s=100)


def places(server: Doubling) -> list[str]:
    return ["--grpc", server.grpc_address, "--rest", server.rest_url]


def test_every_process_shows_certificate_and_token_and_no_report_has_it(
    server: Doubling, identity: list[str], tmp_path: Path
) -> None:
    page, secret = tmp_path / "page.html", tmp_path / "secret"
    secret.write_text(f"authorization: Bearer {TOKEN}\n\nx-more: {TOKEN}\n")
    headers = ["--header", f"@{secret}", f"--header=x-other: {TOKEN}", "--header", f"x-third: {TOKEN}"]
    found = run(
        MODEL, *places(server), *identity, *headers, *BRIEF, "--processes", "2", "--golden", "record",
        "--json", "--html", str(page),
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["total"]["failures"] == 0
    assert all(figures["requests"] for figures in document["protocols"].values())
    html = page.read_text()
    assert TOKEN not in html + found.stdout + found.stderr
    assert "authorization, x-more, x-other, x-third" in html
    assert "x-other: …" in html
    assert str(secret) in html


def test_plain_locust_goes_the_same_way(server: Doubling, identity: list[str]) -> None:
    locust = [LOCUST, "-f", str(LOCUSTFILE), "--headless", "-u", "2", "-r", "2", "-t", "3s", "--only-summary"]
    host = ["--host", f"{server.grpc_address},{server.rest_url}"]
    options = [*host, *identity, "--header", BEARER, "--generator-limit", "note"]
    environment = {**os.environ, "TOKEN": TOKEN}
    found = subprocess.run(
        [*locust, "--model", MODEL, *options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert found.returncode == 0, found.stderr
    assert "gRPC" in found.stdout
    assert TOKEN not in found.stdout + found.stderr


def test_stranger_is_told_before_any_load_how_to_say_who_it_is(server: Doubling, identity: list[str]) -> None:
    found = run(MODEL, "--grpc", server.grpc_address, *identity, *BRIEF)
    assert (found.returncode, found.stdout) == (2, "")
    assert "who are you?. The requests for metadata need credentials with the role read" in found.stderr


def test_server_that_is_not_trusted_is_exit_code_3_and_one_line(server: Doubling) -> None:
    # The command silences gRPC's own lines before it imports gRPC, which a fork has already imported.
    command = [COMMAND, MODEL, "--grpc", server.grpc_address, *BRIEF]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (found.returncode, found.stdout) == (3, "")
    (line,) = found.stderr.splitlines()
    assert "this system does not trust Test Authority, the authority of the server's certificate; set" in line


def test_worker_without_the_files_says_so_to_its_coordinator(
    server: Doubling, identity: list[str], tmp_path: Path
) -> None:
    ca, place = tmp_path / "ca.pem", f"127.0.0.1:{free_ports(1)[0]}"
    ca.write_bytes(Path(identity[1]).read_bytes())
    options = [*identity, "--ca", str(ca), "--header", f"authorization: Bearer {TOKEN}", "--remote", "1"]
    with subprocess.Popen(
        [COMMAND, MODEL, "--grpc", server.grpc_address, *options, "--listen", place, *BRIEF],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as coordinator:
        assert coordinator.stderr is not None
        line = coordinator.stderr.readline()
        assert "Waiting for remote workers (1)" in line
        assert "in plaintext" in coordinator.stderr.readline()
        ca.unlink()
        assert run("worker", place).returncode == 1
        rest = coordinator.communicate(timeout=60)[1]
    assert coordinator.returncode == 98
    assert f"cannot join: {ca}: No such file" in rest


def problem_of(address: str, tls: Tls) -> str:
    return handshake.handshake_problem(parse_address(client_address(address)), tls, address)


def test_handshake_that_fails_has_its_reason_and_what_to_do(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of these servers responds, but may be late on a busy machine.
    monkeypatch.setattr(handshake, "_TIMEOUT_S", 60.0)
    monkeypatch.setattr(handshake, "_FAREWELL_S", 60.0)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with ExitStack() as stack:
        mutual, named, old, clear = (
            stack.enter_context(serving(Doubling(tls=tls)))
            for tls in (
                ServerTls(authority.server, authority.ca),
                ServerTls(authority.issue("model.example")),
                ServerTls(authority.issue("127.0.0.1", not_after=past)),
                None,
            )
        )
        trusting = Tls(authority.ca)
        cases = [
            ("", mutual, Tls(), "this system does not trust Test Authority, .* with --ca"),
            ("", mutual, Tls(stranger.ca), f"{stranger.ca} does not contain Test Authority"),
            ("", named, trusting, "for model.example, not for 127.0.0.1; .* --tls-server-name model.example"),
            ("", old, trusting, "expired on Jan  1 00:00:00 2020 GMT"),
            ("", mutual, trusting, "it may require a client certificate .--cert and --key"),
            ("", mutual, Tls(authority.ca, stranger.server.cert, stranger.server.key), "authority of --cert"),
            ("s", clear, trusting, "the server does not use TLS; use (grpc|http)://127.0.0.1:"),
            ("-", mutual, trusting, "the server uses TLS, .*; use (grpcs|https)://127.0.0.1:"),
        ]
        for change, model, tls, message in cases:
            for address in (model.grpc_address, model.rest_url):
                assert re.search(message, problem_of(changed(address, change), tls)), message
        for prefix in ("oip+", "oip-json+"):
            plaintext = problem_of(f"{prefix}{changed(mutual.rest_url, '-')}", trusting)
            assert f"use {prefix}https://127.0.0.1:" in plaintext
            secured = problem_of(f"{prefix}{changed(clear.rest_url, 's')}", trusting)
            assert f"use {prefix}http://127.0.0.1:" in secured
        rest_port = named.rest_url.rpartition(":")[2]
        wrong_port = problem_of(f"grpcs://127.0.0.1:{rest_port}", Tls(authority.ca, server_name="model.example"))
        assert "does not offer HTTP/2 over TLS" in wrong_port
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ending = threading.Thread(target=lambda: listener.accept()[0].close(), name="ending")
            ending.start()
            ended = problem_of(f"grpcs://127.0.0.1:{listener.getsockname()[1]}", trusting)
            ending.join()
        assert "closed the connection during the TLS handshake; if it does not use TLS, use grpc://" in ended
        for address in (clear.grpc_address, clear.rest_url, f"grpcs://127.0.0.1:{free_ports(1)[0]}"):
            assert problem_of(address, trusting) == ""


def test_headers_come_from_texts_files_and_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKEN", TOKEN)
    file = tmp_path / "headers"
    file.write_text("X-One:  1 \n\nx-two: ${TOKEN}\n")
    access = find_access(replace(NOTHING, headers=(BEARER, f"@{file}")))
    assert access.headers == {"authorization": f"Bearer {TOKEN}", "x-one": "1", "x-two": "${TOKEN}"}
    assert TOKEN not in repr(access)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (["s3cr3t-token"], "without a colon"),
        (["x: ${NOWHERE_SET}"], "environment variable NOWHERE_SET is not set"),
        (["x:  "], "header x has no value"),
        (["@/nowhere/s"], "/nowhere/s: No such file"),
        (["x: s3cr3t-token", "X: 2"], "header x is set twice"),
        (["grpc-timeout: s3cr3t-token"], "is reserved"),
    ],
)
def test_headers_that_are_none_are_usage_errors_that_tell_no_value(headers: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message) as raised:
        find_access(replace(NOTHING, headers=tuple(headers)))
    assert TOKEN not in raised.value.message


@pytest.mark.parametrize(
    ("addresses", "page", "has_access"),
    [
        (("grpcs://h:443", None), "https://h:8501/metrics", True),
        (("h:8500", None), "http://h:8501/metrics", True),
        (("grpcs://h:443", None), "http://h:8501/metrics", False),
        ((None, "https://h"), "https://monitoring/metrics", False),
        ((None, None), "http://localhost:8501/metrics", True),
    ],
)
def test_page_of_metrics_elsewhere_is_told_no_secret(
    addresses: tuple[str | None, str | None], page: str, has_access: bool
) -> None:
    access = Access(Tls("ca", "cert", "key", "name"), {"authorization": TOKEN})
    assert page_access(access, page, ServerOptions(*addresses, NOTHING)) == (
        access if has_access else Access(Tls("ca"))
    )


def test_rollout_asks_for_versions_the_same_way(authority: Authority) -> None:
    server = ModelServer()
    with serving_models(server, "grpc", ServerTls(authority.server)) as address:
        access = Access(Tls(authority.ca), {"authorization": TOKEN})
        with ModelService(address, access, 10, 10) as service:
            assert service.available("affine") == (7,)
    assert [served.headers["authorization"] for served in server.served] == [TOKEN]


def changed(address: str, change: str) -> str:
    """Return the address with TLS added (s) or removed (-)."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "grpc", address
    return f"{scheme + 's' if change == 's' else scheme.rstrip('s') if change == '-' else scheme}://{rest}"
