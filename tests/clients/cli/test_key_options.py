"""Tests for the API key of the commands, against real servers of both protocols."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.clients.model_server import Failure, ModelServer
from tests.support.client_commands import client_commands
from tpuserve_client import Code

KEY = "tk_s3cr3t"
VARIABLE = "TPUSERVE_API_KEY"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return path


@pytest.mark.parametrize("origin", ["file", "environment"])
def test_key_is_sent_with_every_request(
    address: str, server: ModelServer, file: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setenv(VARIABLE, KEY if origin == "environment" else "tk_0th3r")
    options = ["--address", address, *(["--api-key-file", str(file)] if origin == "file" else [])]
    row = file.with_name("row.json")
    row.write_text("[[1, 2, 3, 4]]")
    for command in (["status", "affine"], ["predict", "affine", "--input", str(row)]):
        result = CliRunner().invoke(client_commands, [*command, *options])
        assert (result.exit_code, result.stderr) == (0, "")
        assert KEY not in result.output
    assert {served.headers["authorization"] for served in server.served} == {f"Bearer {KEY}"}


def test_header_overrides_the_environment_and_excludes_the_file(
    address: str, server: ModelServer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    options = ["status", "affine", "--address", address, "--header", "Authorization: Basic own"]
    assert CliRunner().invoke(client_commands, options).exit_code == 0
    assert server.served[0].headers["authorization"] == "Basic own"
    result = CliRunner().invoke(client_commands, [*options, "--api-key-file", str(file)])
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


@pytest.mark.parametrize(
    ("code", "has_key", "advice"),
    [
        (
            Code.UNAUTHENTICATED,
            False,
            "The command sent no credentials. Set --api-key-file, TPUSERVE_API_KEY or --cert",
        ),
        (Code.PERMISSION_DENIED, False, "The command sent no credentials. Set --api-key-file"),
        (Code.UNAUTHENTICATED, True, "Check the key in --api-key-file or TPUSERVE_API_KEY"),
        (Code.PERMISSION_DENIED, True, "Use a key whose roles and models include this call"),
    ],
)
def test_refusal_is_one_line_with_what_to_do(
    address: str, server: ModelServer, file: Path, code: Code, has_key: bool, advice: str
) -> None:
    server.failures.append(Failure(code, "no role for this."))
    options = ["--api-key-file", str(file)] if has_key else []
    result = CliRunner().invoke(client_commands, ["status", "affine", "--address", address, *options])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {code.name}: no role for this. {advice}")
    assert KEY not in line


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ("Bearer x", "begins with Bearer"), ("a b", "is not an API key")]
)
def test_text_that_is_no_key_is_a_usage_error(
    file: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    file.write_text(content)
    result = CliRunner().invoke(client_commands, ["status", "--address", "localhost:1", "--api-key-file", str(file)])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    if content:
        monkeypatch.setenv(VARIABLE, content)
        result = CliRunner().invoke(client_commands, ["status", "--address", "localhost:1"])
        assert result.exit_code == 2
        assert f"The variable {VARIABLE} {message}" in " ".join(result.stderr.split())


def test_no_option_takes_the_key_itself() -> None:
    """Other users of the machine can read the arguments of a process."""
    result = CliRunner().invoke(client_commands, ["status", "--address", "localhost:1", "--api-key", KEY])
    assert result.exit_code == 2
    assert "No such option" in result.stderr


def test_key_in_plaintext_needs_permission(file: Path) -> None:
    options = ["status", "--address", "models.invalid:8500", "--api-key-file", str(file), "--timeout", "5"]
    result = CliRunner().invoke(client_commands, options)
    assert result.exit_code == 2
    assert "Use grpcs://, or set --allow-plaintext-key if you trust the network" in " ".join(result.stderr.split())
    allowed = CliRunner().invoke(client_commands, [*options, "--allow-plaintext-key"])
    assert (allowed.exit_code, allowed.stderr) == (1, "")
    assert "models.invalid:8500" in allowed.stdout
