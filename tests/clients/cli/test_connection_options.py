"""Tests for the command-line options of TLS and headers, against real servers of both protocols."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.clients.model_server import ModelServer, serving
from tests.support.certificates import Authority, ServerTls
from tests.support.client_commands import client_commands

TOKEN = "s3cr3t-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def test_a_server_that_wants_certificates_and_a_token_is_asked(
    authority: Authority, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, server = authority.issue("client@example.org"), ModelServer()
    of_server = authority.issue("model.example")
    file = tmp_path / "headers"
    file.write_text("x-team: ${TOKEN}\n\nx-other: 1\n")
    monkeypatch.setenv("TOKEN", TOKEN)
    with serving(server, protocol, ServerTls(of_server, authority.ca)) as address:
        monkeypatch.setenv("TPUSERVE_ADDRESS", address)
        asked = ["--ca", str(authority.ca), "--cert", str(own.cert), "--key", str(own.key)]
        asked += ["--header", "Authorization: Bearer ${TOKEN}"]
        options = [*asked, "--tls-server-name", "model.example"]
        result = CliRunner().invoke(client_commands, ["status", "affine", *options, "--header", f"@{file}"])
        assert (result.exit_code, result.stderr) == (0, "")
        row = tmp_path / "row.json"
        row.write_text("[[1, 2, 3, 4]]")
        result = CliRunner().invoke(client_commands, ["predict", "affine", "--input", str(row), *options])
        assert (result.exit_code, result.stderr) == (0, "")
        stranger = CliRunner().invoke(client_commands, ["status", "affine", *asked, "--timeout", "30"])
    assert stranger.exit_code == 1
    assert stranger.stderr.startswith("Error: UNAVAILABLE: ")
    assert TOKEN not in stranger.stderr
    assert server.served[0].headers["x-team"] == "${TOKEN}"
    assert {served.headers["authorization"] for served in server.served} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--header", TOKEN], "Expected 'NAME: VALUE' or @FILE"),
        (["--header", "x: ${NOWHERE_SET}"], "The environment variable NOWHERE_SET is not set"),
        (["--header", f"x: {TOKEN}", "--header", "X: 2"], "The header x is set twice"),
        (["--header", "@/nowhere/s"], "/nowhere/s: No such file or directory"),
        (["--header", f"grpc-timeout: {TOKEN}"], "grpc-timeout is reserved"),
        (["--tls-server-name", "a"], "localhost:1 is an address without TLS. Use grpcs:// or https://"),
        (["--ca", "/nowhere/ca.pem"], "Invalid value for '--ca'"),
        (["--address", "grpcs://localhost:1", "--ca", __file__], "does not contain PEM certificates of authorities"),
    ],
)
def test_options_that_do_not_do_are_usage_errors_that_tell_no_value(options: list[str], message: str) -> None:
    result = CliRunner().invoke(client_commands, ["status", "--address", "localhost:1", *options])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert TOKEN not in result.stderr
