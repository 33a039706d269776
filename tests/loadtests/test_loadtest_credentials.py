"""Tests for API keys of `tpuserve loadtest` and `tpuserve rollout`: sources, receivers, and refusals before a load."""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.loadtests.doubling_server import DENIED, MODEL, Doubling, serving
from tests.loadtests.locust_process import LOCUST, LOCUSTFILE
from tests.support import forked_command
from tests.support.free_ports import free_ports
from tpuserve_client import InvalidArgument, KeyFile, Tls
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.cli.access import find_access, find_control_access
from tpuserve_loadtests.cli.monitoring import page_access
from tpuserve_loadtests.cli.options import AccessOptions, ServerOptions

COMMAND, ROLLOUT = "tpuserve-loadtest", "tpuserve-rollout"
BRIEF = ["--users", "4", "--duration", "500ms", "--warm-up", "0", "--generator-limit", "note"]
# A comparison of equal sides that no noise of the machine can fail.
ALIKE = ["--rounds", "3", "--least-effect", "9", "--unclear", "note"]
KEY, READER = "tk_s3cr3t", "tk_r3ad3r"
VARIABLE, CONTROL_VARIABLE = "TPUSERVE_API_KEY", "TPUSERVE_CONTROL_API_KEY"
NOTHING = AccessOptions(
    ca=None, cert=None, key=None, tls_server_name=None, headers=(), api_key_file=None, allow_plaintext_key=False
)


@pytest.fixture(scope="module")
def server() -> Iterator[Doubling]:
    """Serve a model with a key for predictions and one for metadata."""
    with serving(Doubling(token=KEY, reader=READER)) as model:
        yield model


@pytest.fixture
def key_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(key: str) -> Path:
        file = tmp_path / "key"
        file.write_text(f"{key}\n")
        return file

    return write


def run(*command: str, **variables: str) -> forked_command.Ended:
    return forked_command.run(*command, variables=variables, timeout_s=100)


def places(server: Doubling) -> list[str]:
    return ["--grpc", server.grpc_address, "--rest", server.rest_url]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_key_of_a_file_reaches_the_server_from_every_process_and_no_report(
    server: Doubling, key_file: Callable[[str], Path], tmp_path: Path, processes: str
) -> None:
    page, junit = tmp_path / "page.html", tmp_path / "load.xml"
    options = ["--api-key-file", str(key_file(KEY)), "--processes", processes, "--golden", "record", "--json"]
    found = run(COMMAND, MODEL, *places(server), *options, *BRIEF, "--html", str(page), "--junit", str(junit))
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["total"]["failures"] == 0
    assert all(figures["requests"] for figures in document["protocols"].values())
    html = page.read_text()
    assert KEY not in html + junit.read_text() + found.stdout + found.stderr
    assert "API key" in html
    assert str(tmp_path / "key") in html


@pytest.mark.parametrize("command", [["search", "--slo", "p50<=1s"], ["compare"], ["sweep"]])
def test_other_commands_take_the_key_of_the_environment(server: Doubling, command: list[str]) -> None:
    limits = {"search": ["--from", "100", "--to", "200"], "sweep": ["--users", "1,2"], "compare": ALIKE}
    sides = ["1", "1"] if command[0] == "compare" else []
    options = [*limits[command[0]], "--duration", "200ms", "--warm-up", "0", "--generator-limit", "note", "--json"]
    name, *own = command
    found = run(COMMAND, name, MODEL, *sides, *own, "--grpc", server.grpc_address, *options, **{VARIABLE: KEY})
    assert KEY not in found.stdout + found.stderr
    assert "UNAUTHENTICATED" not in found.stdout + found.stderr
    assert found.returncode in (0, 97, 98), found.stderr  # a short run may be inconclusive
    assert json.loads(found.stdout)


def test_sides_of_a_comparison_have_their_own_keys(
    server: Doubling, key_file: Callable[[str], Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("tk_0th3r")
    with serving(Doubling(token="tk_0th3r")) as b:
        sides = [server.grpc_address, b.grpc_address]
        options = [*ALIKE, "--duration", "200ms", "--warm-up", "0", "--generator-limit", "note", "--json"]
        keys = ["--api-key-file", str(key_file(KEY)), "--b-api-key-file", str(other)]
        found = run(COMMAND, "compare", MODEL, *sides, *keys, *options)
        assert found.returncode == 0, found.stderr
        alone = run(COMMAND, "compare", MODEL, *sides, *keys[:2], *options)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert f"{sides[1]}: who are you?" in alone.stderr


def test_plain_locust_sends_the_key(server: Doubling, key_file: Callable[[str], Path]) -> None:
    locust = [LOCUST, "-f", str(LOCUSTFILE), "--headless", "-u", "2", "-r", "2", "-t", "3s", "--only-summary"]
    host = ["--host", f"{server.grpc_address},{server.rest_url}"]
    options = [*host, "--api-key-file", str(key_file(KEY)), "--generator-limit", "note"]
    found = subprocess.run(
        [*locust, "--model", MODEL, *options], capture_output=True, text=True, timeout=100, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "gRPC" in found.stdout
    assert KEY not in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "who are you?. The requests for metadata need credentials with the role read. Set --api-key-file or"),
        (READER, f"{DENIED}. The predictions need credentials with the role predict. Set --api-key-file or"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_refusal_before_any_load_names_the_role(server: Doubling, key: str, message: str, place: int) -> None:
    served = len(server.rows)
    found = run(COMMAND, MODEL, *places(server)[2 * place : 2 * place + 2], *BRIEF, **{VARIABLE: key})
    assert (found.returncode, found.stdout) == (2, "")
    assert message in " ".join(found.stderr.split())
    assert len(server.rows) == served


def test_scenario_is_refused_before_any_load(server: Doubling, tmp_path: Path) -> None:
    scenario = tmp_path / "mixed.yaml"
    scenario.write_text(f"models:\n- model: {MODEL}\n  rows: 2\n- model: {MODEL}\n  name: other\n")
    found = run(COMMAND, "--scenario", str(scenario), *places(server), *BRIEF, **{VARIABLE: READER})
    assert found.returncode == 2
    assert "The predictions need credentials with the role predict" in " ".join(found.stderr.split())


def test_key_does_not_cross_the_network_in_plaintext(server: Doubling) -> None:
    secret = {VARIABLE: KEY}
    for options in (["--grpc", "models.invalid:8500"], ["--rest", "http://models.invalid:8501"]):
        found = run(COMMAND, MODEL, *options, *BRIEF, **secret)
        assert found.returncode == 2
        assert "would cross the network in plaintext" in " ".join(found.stderr.split())
        allowed = run(COMMAND, MODEL, *options, "--allow-plaintext-key", *BRIEF, **secret)
        assert allowed.returncode == 3, allowed.stderr  # the host does not exist
    config = Path(__file__)
    rollout = [ROLLOUT, MODEL, "--to", "2", "--model_config_file", str(config), "--grpc", "models.invalid:8500"]
    for variables in (secret, {CONTROL_VARIABLE: KEY}):
        found = run(*rollout, **variables)
        assert (found.returncode, found.stdout) == (2, "")
        assert "would cross the network in plaintext" in " ".join(found.stderr.split())
    place = f"127.0.0.1:{free_ports(1)[0]}"
    remote = run(COMMAND, MODEL, "--grpc", server.grpc_address, "--remote", "1", "--listen", place, *BRIEF, **secret)
    assert remote.returncode == 2
    assert "--remote sends the API key to the workers in plaintext" in " ".join(remote.stderr.split())


def test_key_comes_from_the_file_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, key_file: Callable[[str], Path]
) -> None:
    options = replace(NOTHING, api_key_file=key_file("of-the-file"))
    monkeypatch.setenv(VARIABLE, "of-the-environment\n")
    find_access.cache_clear()
    assert find_access(options).headers_of("localhost") == {"authorization": "Bearer of-the-file"}
    assert find_access(NOTHING).headers_of("localhost") == {"authorization": "Bearer of-the-environment"}
    assert find_control_access(NOTHING, None) == find_access(NOTHING)
    monkeypatch.setenv(CONTROL_VARIABLE, "of-control")
    assert find_control_access(NOTHING, None).headers_of("localhost") == {"authorization": "Bearer of-control"}
    own = replace(NOTHING, headers=("authorization: Basic own",))
    assert find_access(own).headers_of("localhost") == {"authorization": "Basic own"}
    with pytest.raises(click.UsageError, match="exclude each other"):
        find_access(replace(own, api_key_file=options.api_key_file))
    for access in (find_access(options), find_access(NOTHING)):
        assert "of-the" not in repr(access)
    find_access.cache_clear()


@pytest.mark.parametrize("content", ["", "Bearer x", "two words"])
def test_text_that_is_no_key_is_a_usage_error_without_the_text(
    monkeypatch: pytest.MonkeyPatch, key_file: Callable[[str], Path], content: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(click.UsageError, match=r"key (is empty|begins with Bearer|is not an API key)") as raised:
        find_access(replace(NOTHING, api_key_file=key_file(content)))
    assert not content or content not in raised.value.message
    find_access.cache_clear()


def test_workers_get_the_current_key(key_file: Callable[[str], Path]) -> None:
    file = key_file("first")
    access = Access(api_key=KeyFile(file))
    file.write_text("second")
    sent = Access.from_wire(json.loads(json.dumps(access.to_wire())))
    assert sent.headers_of("localhost") == {"authorization": "Bearer second"}
    with pytest.raises(InvalidArgument, match="plaintext"):
        sent.headers_of("models.example:8500")
    assert Access(api_key="k", allow_plaintext_key=True).headers_of("models.example") == {"authorization": "Bearer k"}


def test_page_of_metrics_elsewhere_gets_no_key() -> None:
    access = Access(Tls("ca"), {}, KEY)
    options = ServerOptions("grpcs://h:443", None, NOTHING)
    assert page_access(access, "https://h:8501/metrics", options) == access
    assert page_access(access, "https://monitoring/metrics", options) == Access(Tls("ca"))
