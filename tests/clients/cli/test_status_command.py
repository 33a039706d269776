"""`tpuserve status` against a real server."""

import json

import pytest
from click.testing import CliRunner
from tpuserve_client.cli import main
from tpuserve_client.errors import Code

from tests.clients.model_server import Failure, ModelServer


@pytest.fixture(autouse=True)
def _address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSERVE_ADDRESS", address)


def test_versions_are_listed_with_state_and_error() -> None:
    result = CliRunner().invoke(main, ["status", "affine"])
    assert result.exit_code == 0
    assert result.stdout == "7\tAVAILABLE\t\n3\tEND\tINTERNAL: weights are corrupt\n"


def test_json_says_the_same() -> None:
    document = json.loads(CliRunner().invoke(main, ["status", "affine", "--json"]).stdout)
    assert document["model"] == "affine"
    assert document["versions"][1] == {"version": 3, "state": "END", "code": "INTERNAL", "error": "weights are corrupt"}


def test_model_without_an_available_version_exits_1(server: ModelServer) -> None:
    server.ready = False
    result = CliRunner().invoke(main, ["status", "affine"])
    assert result.exit_code == 1
    assert "LOADING" in result.stdout


@pytest.mark.parametrize(("ready", "exit_code"), [(True, 0), (False, 1)])
def test_server_is_ready_or_not(server: ModelServer, ready: bool, exit_code: int, address: str) -> None:
    server.ready = ready
    result = CliRunner().invoke(main, ["status"])
    assert result.exit_code == exit_code
    assert result.stdout == f"{address} is {'ready' if ready else 'not ready'}\n"
    assert json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout) == {"address": address, "ready": ready}


def test_wait_ends_when_the_model_is_ready(server: ModelServer) -> None:
    server.failures.append(Failure(Code.UNAVAILABLE))
    result = CliRunner().invoke(main, ["status", "affine", "--wait"])
    assert result.exit_code == 0
    assert server.methods() == ["GetModelStatus"] * 3


def test_wait_in_vain_is_one_line(server: ModelServer) -> None:
    server.ready = False
    result = CliRunner().invoke(main, ["status", "affine", "--wait", "--timeout", "0.2"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: DEADLINE_EXCEEDED: Model affine was not ready within 0.2 s: version 7 is LOADING"
    )
    assert len(result.stderr.splitlines()) == 1


def test_unknown_model_is_one_line(server: ModelServer) -> None:
    server.failures.append(Failure(Code.NOT_FOUND, "Could not find any versions\nof model x"))
    result = CliRunner().invoke(main, ["status", "x"])
    assert result.exit_code == 1
    assert result.stderr == "Error: NOT_FOUND: Could not find any versions of model x\n"


@pytest.mark.parametrize("arguments", [["--version", "1"], ["m", "--address", "ftp://x"], ["m", "--timeout", "0"]])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["status", *arguments]).exit_code == 2
