"""Tests for the order of address sources: options, the scenario, TPUSERVE_ADDRESS, and this machine."""

import re
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.support import forked_command
from tpuserve_client.address import ADDRESS_VARIABLE
from tpuserve_loadtests.cli import options
from tpuserve_loadtests.cli.access import find_addresses, with_address
from tpuserve_loadtests.cli.options import AccessOptions, MeasuredServerOptions

# An address without a server. The command's error names it.
NOBODY = "127.0.0.1:1"
CONFIG = 'model_config_list { config { name: "m" base_path: "/m" version_labels { key: "stable" value: 1 } } }'
# sweep, search and soak find their server like run.
COMMANDS = {
    "run": ("loadtest", "m"),
    "run a scenario": ("loadtest", "run", "--scenario", "scenario.yaml"),
    "compare": ("loadtest", "compare", "m", "1", "2"),
    "mlperf": ("loadtest", "mlperf", "m", "--scenario", "offline"),
    "rollout": ("rollout", "m", "--to", "2", "--model_config_file", "models.config"),
    # --rest is only for the server's memory.
    "rollout --rest": ("rollout", "m", "--to", "2", "--model_config_file", "models.config", "--rest", "http://nobody"),
}
NOTHING = MeasuredServerOptions(None, None, AccessOptions(None, None, None, None, (), None, False), None)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_ask_the_server_that_the_variable_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scenario.yaml").write_text("models:\n  - model: m\n    protocol: grpc\n")
    (tmp_path / "models.config").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    command, *arguments = COMMANDS[name]
    run = forked_command.run(f"tpuserve-{command}", *arguments, variables={ADDRESS_VARIABLE: NOBODY}, timeout_s=100)
    assert NOBODY in run.stderr, run.stderr
    assert run.returncode == 3


def test_load_tests_and_client_read_one_variable() -> None:
    assert options.ADDRESS_VARIABLE == ADDRESS_VARIABLE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("host:9000", {"grpc": "host:9000"}),
        ("grpcs://host:9000", {"grpc": "grpcs://host:9000"}),
        ("unix:/run/serve.sock", {"grpc": "unix:/run/serve.sock"}),
        ("http://host:9001", {"rest": "http://host:9001"}),
        ("https://host", {"rest": "https://host"}),
        ("oip+grpc://host:8001", {"oip_grpc": "oip+grpc://host:8001"}),
        ("oip+http://host:8000", {"oip_http": "oip+http://host:8000"}),
        ("oip-json+https://host", {"oip_json": "oip+https://host"}),
        ("", {"grpc": options.DEFAULT_GRPC, "rest": options.DEFAULT_REST}),
    ],
)
def test_the_variable_names_the_protocol_that_is_measured(
    text: str, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, text)
    server = with_address(NOTHING, None)
    assert find_addresses(None, server.grpc_address, server.rest_url) == found


@pytest.mark.parametrize("given", [replace(NOTHING, grpc_address="own:1"), replace(NOTHING, rest_url="http://own:1")])
def test_an_address_that_is_given_goes_before_the_variable(
    given: MeasuredServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "host:9000")
    assert with_address(given, None) == given


@pytest.mark.parametrize(
    ("text", "needs", "complaint"),
    [
        (
            "host:9000",
            "rest",
            f"{ADDRESS_VARIABLE}=host:9000 is a grpc address, but the command needs rest. Set --rest URL.$",
        ),
        ("host:9000", "both", "the command needs both. Set --rest URL and --grpc.$"),
        ("http://host", "grpc", "is a rest address, but the command needs grpc. Set --grpc HOST:PORT.$"),
        ("http://", None, ADDRESS_VARIABLE),
        ("oip+http://host", "grpc", "is a rest address, but the command needs grpc"),
        ("oip-json+grpc://host:1", None, r"oip-json\+ needs http:// or https://; received 'oip-json\+grpc://host:1'"),
        ("http://user:word@host", None, "cannot contain a user and password. Send them with --header"),
    ],
)
def test_a_variable_that_does_not_do_is_a_usage_error(
    text: str, needs: str | None, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, text)
    with pytest.raises(click.UsageError) as caught:
        with_address(NOTHING, needs)
    assert re.search(complaint, caught.value.format_message())
