"""Tests for `tpuserve status` against a real server."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.clients.clients_under_test import Clock
from tests.clients.model_server import INT64, Failure, ModelServer, Served
from tests.support.client_commands import client_commands
from tests.support.free_ports import free_ports
from tpuserve_client.cli import connection
from tpuserve_client.errors import Code

TPUSERVE = Path(sys.prefix) / "bin" / "tpuserve"


@pytest.fixture(autouse=True)
def _address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSERVE_ADDRESS", address)


def test_versions_are_listed_with_state_and_error() -> None:
    result = CliRunner().invoke(client_commands, ["status", "affine"])
    assert result.exit_code == 0
    assert result.stdout == "7\tAVAILABLE\t\n3\tEND\tINTERNAL: weights are corrupt\n"


def test_json_says_the_same() -> None:
    document = json.loads(CliRunner().invoke(client_commands, ["status", "affine", "--json"]).stdout)
    assert document["model"] == "affine"
    assert document["versions"][1] == {"version": 3, "state": "END", "code": "INTERNAL", "error": "weights are corrupt"}


def test_model_without_an_available_version_exits_1(server: ModelServer) -> None:
    server.ready = False
    result = CliRunner().invoke(client_commands, ["status", "affine"])
    assert result.exit_code == 1
    assert "LOADING" in result.stdout


@pytest.mark.parametrize(("ready", "exit_code"), [(True, 0), (False, 1)])
def test_server_is_ready_or_not(server: ModelServer, ready: bool, exit_code: int, address: str) -> None:
    server.ready = ready
    result = CliRunner().invoke(client_commands, ["status"])
    assert result.exit_code == exit_code
    reason = json.loads(CliRunner().invoke(client_commands, ["status", "--json"]).stdout)
    assert reason.pop("address") == address
    assert reason.pop("ready") is ready
    assert bool(reason["reason"]) is not ready
    assert result.stdout == f"{address} is {'ready' if ready else 'not ready: ' + reason['reason']}\n"
    assert "--address" not in result.stdout


@pytest.mark.parametrize("scheme", ["", "http://", "oip+grpc://", "oip+http://"])
def test_an_address_without_a_server_gives_the_cause_and_what_to_do(scheme: str) -> None:
    address = f"{scheme}localhost:{free_ports(1)[0]}"
    result = CliRunner().invoke(client_commands, ["status", "--address", address, "--timeout", "5"])
    why = "Cannot connect: Connection refused. Start the server, or set --address\n"
    assert (result.exit_code, result.stdout) == (1, f"{address} is not ready: {why}")
    named = CliRunner().invoke(client_commands, ["status", "affine", "--address", address, "--timeout", "5"])
    assert (named.exit_code, named.stderr) == (1, f"Error: UNAVAILABLE: {why}")


def test_wait_ends_when_the_model_is_ready(server: ModelServer) -> None:
    server.failures.append(Failure(Code.UNAVAILABLE))
    result = CliRunner().invoke(client_commands, ["status", "affine", "--wait"])
    assert result.exit_code == 0
    assert server.methods() == ["GetModelStatus"] * 3


def test_wait_in_vain_is_one_line(server: ModelServer) -> None:
    server.ready = False
    result = CliRunner().invoke(client_commands, ["status", "affine", "--wait", "--timeout", "2"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: DEADLINE_EXCEEDED: Model affine was not ready within 2 s: version 7 is LOADING"
    )
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["affine"]])
def test_timeout_spans_the_wait_and_what_follows(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(connection, "monotonic", clock)
    begin = server.begin

    def slowly(served: Served) -> Failure | None:
        clock.sleep(31.0)
        return begin(served)

    monkeypatch.setattr(server, "begin", slowly)
    result = CliRunner().invoke(client_commands, ["status", *arguments, "--wait", "--timeout", "30"])
    assert result.exit_code == 1
    assert (
        len(server.methods()) == 1
    )  # the first probe found the server ready, and the timeout left no time for another request


def test_unknown_model_is_one_line(server: ModelServer) -> None:
    server.failures.append(Failure(Code.NOT_FOUND, "Could not find any versions\nof model x"))
    result = CliRunner().invoke(client_commands, ["status", "x"])
    assert result.exit_code == 1
    assert result.stderr == "Error: NOT_FOUND: Could not find any versions of model x\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version", "1"],
        ["m", "--address", "ftp://x"],
        ["m", "--address", "http://h:abc"],
        ["m", "--address", "http://h:99999"],
        ["m", "--timeout", "0"],
    ],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(client_commands, ["status", *arguments]).exit_code == 2


def on_a_terminal(command: list[str | Path], **locale: str) -> str:
    """Return the output that a command prints to a terminal."""
    ours, theirs = pty.openpty()
    # A fixed terminal type: colours, width and characters must not depend on the developer's terminal.
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "100", "PYTHONUTF8": "1", **locale}
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        output = bytearray()
        with os.fdopen(ours, "rb", closefd=True) as reader, contextlib.suppress(OSError):  # EIO: the other end closed
            while chunk := reader.read1():
                output += chunk
    assert process.returncode == 0
    return output.decode()


def test_table_on_a_terminal(address: str) -> None:
    output = on_a_terminal([TPUSERVE, "status", "affine", "--address", address])
    title, *_, failed, _bottom = output.splitlines()
    assert title.strip() == "affine"
    assert [cell.strip() for cell in failed.split("│")[1:-1]] == ["3", "END", "INTERNAL: weights are corrupt"]


def test_long_output_is_cut_on_a_terminal(address: str, tmp_path: Path, server: ModelServer) -> None:
    spec = {"x": (INT64, [-1])}
    server.signatures["mirror"] = (spec, spec)
    np.save(tmp_path / "x.npy", np.arange(150))
    arguments = ["predict", "mirror", "--input", str(tmp_path / "x.npy"), "--address", address]
    assert "… 50 more]" in " ".join(on_a_terminal([TPUSERVE, *arguments]).split())
    ascii_only = on_a_terminal([TPUSERVE, *arguments], LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert r"\u2026 50 more]" in " ".join(ascii_only.split())
