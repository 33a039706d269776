"""Tests for scenario files: their parsing, and whole runs of several models, each in a separate process."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.support import forked_command
from tpuserve_loadtests.cli.scenario import BadScenario, read_scenario
from tpuserve_loadtests.requests.distribution import Distribution
from tpuserve_loadtests.requests.workload import mixed_order

# The runs share a small machine with other processes, and the tests are not about the generator's limits.
BUSY_IS_FINE = ("--generator-limit", "note")

WHOLE = """
grpc: localhost:9000
timeout: 5s
models:
  - model: digits
    weight: 3
    label: stable
    protocol: both
    rows: {8: 0.3, 1: 0.7}
    input: images.npz
  - {model: bert, name: questions, version: 4, signature: answer, protocol: grpc, lengths: {ids: 16..128}}
  - {model: tiny, rows: 4, lengths: 'lognormal(64, 0.5)'}
load:
  rate: 100..1000
  arrivals: bursts
  burst: 5
  duration: 2m
  warm_up: 0
  seed: 7
fail_if: [p99>20ms, rate<500]
slo: p99<=20ms
"""


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.savez(tmp_path / "images.npz", x=np.ones((5, 4), np.float32))
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "mixed.yaml"
    path.write_text(text)
    return path


def loadtest(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", *arguments, *UNRECORDED, *BUSY_IS_FINE)


def test_a_scenario_holds_models_and_what_else_the_command_line_says(folder: Path) -> None:
    scenario = read_scenario(written(folder, WHOLE))
    digits, bert, tiny = scenario.parts
    assert (digits.model, digits.weight, digits.label, digits.ports) == ("digits", 3, "stable", ("grpc", "rest"))
    rows = Distribution.parse(digits.requests["rows"])
    assert (rows.values, rows.weights) == ((1, 8), (0.7, 0.3))
    assert digits.requests["input_file"] == folder / "images.npz"
    assert (bert.name, bert.version, bert.ports) == ("questions", 4, ("grpc",))
    assert bert.requests == {"signature_name": "answer", "lengths": ("ids=16..128",)}
    assert (tiny.weight, tiny.ports) == (1, ())
    assert tiny.requests == {"rows": "4", "lengths": ("lognormal(64, 0.5)",)}
    assert scenario.title == "mixed"
    assert scenario.settings == {
        "grpc_address": "localhost:9000",
        "timeout": 5,
        "rate": "100..1000",
        "process": "bursts",
        "burst": 5,
        "duration": 120,
        "warm_up": 0,
        "seed": 7,
        "gates": ("p99>20ms", "rate<500"),
        "objectives": ("p99<=20ms",),
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the file: expected keys and values, received nothing"),
        ("[1, 2]", r"the file: expected keys and values, received \[1, 2\]"),
        ("a: [", "not valid YAML"),
        ("load: {}", "models: expected a list of models, received nothing"),
        ("models: []", r"models: expected a list of models, received \[\]"),
        ("models: [digits]", r"models\[0\]: expected keys and values, received 'digits'"),
        ("models: [{name: x}]", r"models\[0\]\.model: expected the model's name, received nothing"),
        ("models: [{model: 7}]", r"models\[0\]\.model: expected the model's name, received 7"),
        ("models: [{model: m, wieght: 2}]", r"models\[0\]\.wieght: expected .* keys model, name, .* received 'wieght'"),
        ("models: [{model: m}, {model: n, weight: 0}]", r"models\[1\]\.weight: expected a number above 0, received 0"),
        ("models: [{model: m, weight: true}]", "weight: expected a number above 0, received True"),
        ("models: [{model: m, rows: 1-4}]", r"rows: expected a number or a distribution.*received '1-4'"),
        ("models: [{model: m, rows: {one: 1}}]", "rows: expected a number or a distribution"),
        ("models: [{model: m, rows: {0: 1}}]", "rows: expected a number or a distribution"),
        ("models: [{model: m, rows: {}}]", "has no valid values"),
        ("models: [{model: m, lengths: [4]}]", r"lengths: expected .* or one for each input, received \[4\]"),
        ("models: [{model: m, protocol: http}]", "protocol: expected grpc, rest or both, received 'http'"),
        ("models: [{model: m, version: 1, label: a}]", r"models\[0\]: expected a version or a label, received both"),
        ("models: [{model: m, input: no.npz}]", "input: expected an .npz, .npy or .json file.*does not exist"),
        ("models: [{model: m, model: n}]", "duplicate key 'model'"),
        ("models: [{model: m}]\nload: 5", "load: expected keys and values, received 5"),
        ("models: [{model: m}]\nload: {users: 1.5}", r"load\.users: expected an integer of at least 1, received 1\.5"),
        ("models: [{model: m}]\nload: {rate: fast}", r"load\.rate: expected requests per second.*received 'fast'"),
        ("models: [{model: m}]\nload: {duration: soon}", r"load\.duration: expected a duration such as 30s or 2m"),
        ("models: [{model: m}]\nload: {users: 4, rate: 5}", "load: expected .*set one of users and rate"),
        ("models: [{model: m}]\nfail_if: [p99>20]", "fail_if: expected gates such as .*received .*p99 needs us or ms"),
        ("models: [{model: m}]\nslo: 5", "slo: expected objectives"),
    ],
)
def test_what_is_no_scenario_is_refused_with_the_key_what_was_expected_and_what_came(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(BadScenario, match=complaint) as caught:
        read_scenario(written(tmp_path, text))
    assert "mixed.yaml: " in str(caught.value)


def test_a_models_golden_answers_may_be_a_versions(folder: Path) -> None:
    (folder / "8").mkdir()
    (part,) = read_scenario(written(folder, "models: [{model: m, golden: '8'}]")).parts
    assert part.golden == folder / "8"
    with pytest.raises(BadScenario, match=r"\[0\]: expected no rows with a version directory"):
        read_scenario(written(folder, "models: [{model: m, golden: './8', rows: 4}]"))
    with pytest.raises(BadScenario, match=r"models\[0\]\.golden: expected .* or a version directory, received '9'"):
        read_scenario(written(folder, "models: [{model: m, golden: '9'}]"))


SMALL_AND_LARGE = f"""
models:
  - {{model: {MODEL}, name: small, weight: 3}}
  - {{model: {MODEL}, name: large, protocol: grpc, rows: {{2: 0.5, 4: 0.5}}}}
load: {{rate: 200, arrivals: constant, duration: 1s, warm_up: 0}}
fail_if: [rate<1]
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_requests_go_to_models_and_protocols_by_weight_however_many_processes_share_them(
    server: Doubling, tmp_path: Path, processes: str
) -> None:
    path = str(written(tmp_path, SMALL_AND_LARGE))
    addresses = ("--grpc", server.grpc_address, "--rest", server.rest_url)
    run = loadtest("run", "--scenario", path, *addresses, "--processes", processes, "--json")
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["model"] == "mixed"
    requests = {name: line["requests"] for name, line in report["lines"].items()}
    # The weight of `small` is 3, over two protocols.
    expected = Counter(mixed_order((1.5, 1.5, 1))[:200])
    small_grpc, small_rest, large_2, large_4 = requests.values()
    large = large_2 + large_4
    # A process that the machine stalls at the end of the load drops arrivals, and reports them.
    missing = [expected[0] - small_grpc, expected[1] - small_rest, expected[2] - large]
    assert min(missing) >= 0
    assert sum(missing) == report["generator"]["dropped"] < 100
    assert list(requests) == ["small gRPC", "small REST", "large gRPC, 2 rows", "large gRPC, 4 rows"]
    rows = Counter(server.rows)
    assert rows[1] == small_grpc + small_rest
    assert (rows[2], rows[4]) == (large_2, large_4)
    assert min(rows[2], rows[4]) > 10
    assert [gate["gate"] for gate in report["gates"]] == ["rate<1"]


def test_the_command_line_goes_before_the_file_and_the_table_has_a_line_for_each_model(
    server: Doubling, tmp_path: Path
) -> None:
    path = str(written(tmp_path, SMALL_AND_LARGE))
    options = ("--users", "2", "--duration", "500ms", "--fail-if", "rate<0.5")
    run = loadtest("--scenario", path, "--grpc", server.grpc_address, *options)
    assert run.returncode == 0, run.stderr
    assert "mixed: 0.5 s, 2 users, 1.5 rows a request" in run.stdout
    assert "│ large gRPC, 2 rows │" in run.stdout
    assert "passed: rate " in run.stdout


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        (SMALL_AND_LARGE, [MODEL], "--scenario names the models"),
        (SMALL_AND_LARGE, ["--rows", "3"], "Omit --rows"),
        (SMALL_AND_LARGE, ["--rest", "http://localhost:1"], "uses grpc, but no grpc address is set. Set --grpc, or"),
        (SMALL_AND_LARGE.replace("large", "small"), [], "Several models have the name 'small'"),
        (SMALL_AND_LARGE.replace("weight", "height"), [], "mixed.yaml: models[0].height: expected one of the keys"),
    ],
)
def test_a_scenario_that_cannot_be_run_is_exit_code_2(
    tmp_path: Path, text: str, arguments: list[str], complaint: str
) -> None:
    run = loadtest("run", "--scenario", str(written(tmp_path, text)), *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("search", "rate>=1 is not an objective. Write an upper limit, such as --slo 'p99<=20ms'"),
        ("sweep", "The gate rate<1 of the scenario belongs to its own load"),
    ],
)
def test_a_scenarios_gate_on_its_own_rate_is_refused_by_commands_with_other_rates(
    tmp_path: Path, command: str, complaint: str
) -> None:
    ended = loadtest(command, "--scenario", str(written(tmp_path, SMALL_AND_LARGE)))
    assert ended.returncode == 2
    assert complaint in " ".join(ended.stderr.split())


def test_a_search_and_a_sweep_heed_the_gates_of_a_scenario_and_its_lines(tmp_path: Path) -> None:
    parts = f"[{{model: {MODEL}, name: small, weight: 3}}, {{model: {MODEL}, name: big, rows: 8}}]"
    path = written(tmp_path, f"models: {parts}\nfail_if: [big.error_rate>1%]\nload: {{warm_up: 0, duration: 500ms}}")
    brief = {"tpuserve_loadtests.cli.search_command._FIRST_S": 0.5}
    with serving(Doubling(refused_rows=8)) as server:
        options = ("--scenario", str(path), "--grpc", server.grpc_address, *UNRECORDED, *BUSY_IS_FINE)
        search = forked_command.run("tpuserve-loadtest", "search", *options, constants=brief)
        sweep = forked_command.run("tpuserve-loadtest", "sweep", *options, "--users", "2", "--json")
    assert search.returncode == 99, search.stderr
    assert "a single user already misses the objective, with big.error_rate<=1%: 100 %" in search.stdout
    assert sweep.returncode == 99, sweep.stderr
    (step,) = json.loads(sweep.stdout)["steps"]
    assert [(gate["gate"], gate["figure"], gate["failed"]) for gate in step["gates"]] == [
        ("big.error_rate>1%", 1, True)
    ]


def test_a_model_of_a_scenario_that_the_server_does_not_have_is_named(server: Doubling, tmp_path: Path) -> None:
    path = written(tmp_path, f"models: [{{model: {MODEL}}}, {{model: other}}]")
    run = loadtest("run", "--scenario", str(path), "--grpc", server.grpc_address)
    assert run.returncode == 2
    assert "Latest(other)" in run.stderr
    assert server.rows == []
