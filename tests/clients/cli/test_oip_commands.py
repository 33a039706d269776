"""Tests for `tpuserve predict` and `tpuserve status` with addresses of the Open Inference Protocol."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.clients.model_server import ModelServer
from tests.clients.oip_faces import OIP
from tests.support.client_commands import client_commands

pytestmark = pytest.mark.parametrize("protocol", OIP, indirect=True)


@pytest.fixture(autouse=True)
def _address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUSERVE_ADDRESS", address)


def test_predict_prints_the_outputs(tmp_path: Path, server: ModelServer) -> None:
    row = tmp_path / "row.json"
    row.write_text("[[1, 2, 3, 4]]")
    result = CliRunner().invoke(
        client_commands, ["predict", "affine", "--input", str(row), "--priority", "low", "--json"]
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["outputs"] == {"y": [[3.0, 5.0, 7.0, 9.0]], "best": [3]}
    assert (document["version"], document["signature"]) == (7, "serving_default")
    assert server.served[-1].priority == "2"


def test_label_is_one_line_that_names_the_other_protocol(tmp_path: Path) -> None:
    row = tmp_path / "row.json"
    row.write_text("[[1, 2, 3, 4]]")
    result = CliRunner().invoke(client_commands, ["predict", "affine", "--input", str(row), "--label", "stable"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: INVALID_ARGUMENT: The Open Inference Protocol has no version labels. Use an"
    )
    assert len(result.stderr.splitlines()) == 1


def test_status_lists_the_ready_versions(server: ModelServer) -> None:
    result = CliRunner().invoke(client_commands, ["status", "affine", "--wait"])
    assert (result.exit_code, result.stdout) == (0, "7\tAVAILABLE\t\n3\tAVAILABLE\t\n")
    assert CliRunner().invoke(client_commands, ["status"]).exit_code == 0
    server.ready = False
    assert CliRunner().invoke(client_commands, ["status"]).exit_code == 1


@pytest.mark.parametrize(("is_ready", "exit_code"), [(True, 0), (False, 1)])
def test_status_of_a_server_without_versions_is_the_models_readiness(
    server: ModelServer, is_ready: bool, exit_code: int
) -> None:
    server.version_header, server.ready = False, is_ready
    result = CliRunner().invoke(client_commands, ["status", "affine"])
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert server.methods() == ["ModelMetadata", "ModelReady"]
