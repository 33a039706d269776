"""Load tests of a real server: its request log, and each command over the Open Inference Protocol."""

import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running_server import RunningServer, run_server
from tests.loadtests.locust_process import LOCUST, LOCUSTFILE, requests_in
from tests.loadtests.rapl_tree import RaplTree
from tests.support import forked_command
from tests.support.device_programs import double_and_add, write_programs
from tests.support.saved_models import predict_request, write_warmup

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

# A loaded machine makes the generator late, which is not the subject here.
LENIENT = ("--generator-limit", "note", "--json")
# Durations in seconds: a quick run of `mlperf` and the shortest soak, which are 10 s, and the single user of a search.
BRIEF = {
    "tpuserve_loadtests.mlperf.options.QUICK_S": 1.0,
    "tpuserve_loadtests.cli.commands.LEAST_SOAK_S": 2.0,
    "tpuserve_loadtests.cli.search_command._FIRST_S": 0.5,
}
RAPL_ROOT = "tpuserve_loadtests.monitoring.energy.ROOT"


@dataclass
class Served:
    """A server of model `m`, the prefix of its request log, and the warm-up requests of the model."""

    server: RunningServer
    log_prefix: Path
    warm_up: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("loaded")
    version = folder / "m" / "1"
    write_warmup(version, predict_request(x=[[1.0, 2.0]]))
    write_programs(version, double_and_add())
    logged = folder / "requests" / "log"
    flags = ("--device=cpu", f"--request_log_path_prefix={logged}")
    with run_server(version.parent, folder / "log", *flags) as server:
        yield Served(server, logged, version / "assets.extra" / "tf_serving_warmup_requests")
        assert server.terminate() == 0


def loadtest(*arguments: str, exit_codes: tuple[int, ...] = (0,), constants: Mapping[str, float | str] = BRIEF) -> Any:  # noqa: ANN401  # a JSON document
    """Run a command and return its JSON document."""
    ended = forked_command.run("tpuserve-loadtest", *arguments, *LENIENT, constants=constants)
    assert ended.returncode in exit_codes, ended.stderr
    return json.loads(ended.stdout)


def failures(document: object) -> set[int]:
    """Return the numbers of failed requests in a document. Those of `mlperf` and `search` have none."""
    return {int(count) for count in re.findall(r'"failures": (\d+)', json.dumps(document))}


def sent_log(served: Served, requests: int) -> Path:
    """Return a copy of the request log with at least this number of records. The server still writes to the log."""
    (path,) = served.log_prefix.parent.glob("log-m-*")
    while path.read_bytes().count(b"\n") < requests:
        time.sleep(0.1)  # another process writes the log after the responses
    copy = served.log_prefix.parent.parent / "sent"
    copy.write_bytes(path.read_bytes())
    return copy


def test_what_a_server_logged_is_sent_to_it_again(served: Served) -> None:
    addresses = ("--grpc", served.server.grpc, "--rest", served.server.rest)
    # The server also logs the requests whose responses a load test records.
    load = ("--rate", "40", "--duration", "2s", "--warm-up", "0", "--rows", "1..4", "--golden", "off")
    first = loadtest("run", "m", *addresses, *load)
    sent = sent_log(served, first["total"]["requests"])
    replay = ("run", "m", "--recorded", str(sent), "--speed", "2", "--warm-up", "0")
    forms = (
        addresses,
        ("--grpc", f"oip+grpc://{served.server.grpc}", "--rest", f"oip+{served.server.rest}"),
        ("--rest", f"oip-json+{served.server.rest}"),
    )
    for form in forms:
        again = loadtest(*replay, *form)
        assert (again["total"]["requests"], again["total"]["failures"]) == (first["total"]["requests"], 0)
        assert again["rows_per_request"] == pytest.approx(first["rows_per_request"], rel=0.3)
    warmed = loadtest("run", "m", *addresses, "--recorded", str(served.warm_up), "--users", "2", "--duration", "300ms")
    assert warmed["total"]["failures"] == 0


@pytest.mark.parametrize(
    ("command", "forms", "options", "exit_codes"),
    [
        ("run", ("oip+grpc", "oip+http"), ("--duration", "500ms", "--users", "2"), (0,)),
        ("sweep", ("oip-json+http",), ("--duration", "1s", "--rate", "20,40"), (0,)),
        (
            "search",
            ("oip+http",),
            ("--slo", "error_rate<=1%", "--duration", "500ms", "--from", "40", "--to", "40"),
            (0, 98, 99),
        ),
        ("soak", ("oip+grpc", "oip-json+http"), ("--duration", "2s", "--segments", "20", "--rate", "40"), (0, 97, 99)),
        ("mlperf", ("oip+grpc",), ("--scenario", "single-stream", "--quick"), (0, 99)),
    ],
)
def test_a_command_loads_a_server_over_the_open_inference_protocol(
    served: Served, command: str, forms: tuple[str, ...], options: tuple[str, ...], exit_codes: tuple[int, ...]
) -> None:
    page = served.log_prefix.parent.parent / f"{command}.html"
    addresses = tuple(part for form in forms for part in (_option(form), _address(served.server, form)))
    document = loadtest(
        command, "m", *addresses, *options, "--warm-up", "100ms", "--html", str(page), exit_codes=exit_codes
    )
    assert failures(document) <= {0}
    assert all(_address(served.server, form) in page.read_text() for form in forms)


def test_a_comparison_has_a_form_on_each_side(served: Served) -> None:
    sides = (_address(served.server, "oip+http"), _address(served.server, "oip-json+http"))
    load = ("--rate", "40", "--duration", "300ms", "--warm-up", "100ms", "--unclear", "note")
    document = loadtest("compare", "m", *sides, *load, exit_codes=(0, 99))
    assert failures(document) <= {0}


@contextmanager
def using_energy(tree: RaplTree) -> Iterator[None]:
    """Advance the counters while the block runs."""
    over = threading.Event()

    def advance() -> None:
        used_uj = 0
        while not over.wait(0.005):
            used_uj += 100_000
            tree.set_all(used_uj)

    thread = threading.Thread(target=advance)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("command", "options", "exit_codes"),
    [
        ("run", ("--duration", "500ms", "--users", "2"), (0,)),
        ("mlperf", ("--scenario", "offline", "--quick"), (0, 99)),
        ("soak", ("--duration", "2s", "--segments", "20", "--rate", "40"), (0, 97, 99)),
    ],
)
def test_a_command_reports_cost_and_energy_of_a_server_on_this_machine(
    served: Served, tmp_path: Path, command: str, options: tuple[str, ...], exit_codes: tuple[int, ...]
) -> None:
    tree = RaplTree(tmp_path)
    load = ("--grpc", served.server.grpc, "--rows", "4", "--warm-up", "100ms", "--price-per-hour", "1.20 EUR")
    constants = BRIEF | {RAPL_ROOT: str(tree.root)}
    with using_energy(tree):
        document = loadtest(command, "m", *options, *load, exit_codes=exit_codes, constants=constants)
    cost, energy = document["cost"], document["energy"]
    assert (cost["price_per_hour"], cost["currency"]) == (1.2, "EUR")
    assert cost["per_million_requests"] == pytest.approx(4 * cost["per_million_predictions"])
    assert cost["per_million_predictions"] * cost["predictions_per_s"] == pytest.approx(1.2 / 3600 * 1e6)
    assert set(energy["watts"]) == {"package", "dram"}
    assert energy["joules_per_prediction"] == pytest.approx(sum(energy["watts"].values()) / cost["predictions_per_s"])
    assert energy["joules_per_prediction"] > 0


def test_the_terminal_names_the_cost_and_the_reason_for_an_unknown_energy(served: Served, tmp_path: Path) -> None:
    options = ("--rest", served.server.rest, "--users", "2", "--duration", "300ms", "--price-per-hour", "0.40")
    ended = forked_command.run(
        "tpuserve-loadtest", "run", "m", *options, *LENIENT[:2], constants={RAPL_ROOT: str(tmp_path)}
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^  Cost: [\d.,]+ USD per million predictions, at .* and 0\.4 USD/h$", ended.stdout, re.MULTILINE)
    assert "\n  Energy: not measured: this machine has no RAPL counters\n" in ended.stdout


def test_a_model_that_the_server_lacks_is_reported_with_the_address(served: Served) -> None:
    address = _address(served.server, "oip-json+http")
    ended = forked_command.run("tpuserve-loadtest", "run", "other", "--rest", address)
    assert ended.returncode == 2
    assert f"{address} does not serve other: Request for unknown model: 'other' is not found" in ended.stderr


def test_plain_locust_takes_an_address_of_the_open_inference_protocol(served: Served) -> None:
    ended = _locust(LOCUSTFILE, _address(served.server, "oip-json+http"), "--model", "m")
    assert "OIP HTTP JSON" in ended.stdout


@pytest.mark.parametrize("form", ["grpc", "http", "oip+grpc", "oip+http", "oip-json+http"])
def test_a_written_scenario_sends_what_the_server_counts(served: Served, tmp_path: Path, form: str) -> None:
    address, file = _address(served.server, form), tmp_path / "locustfile.py"
    written = forked_command.run("tpuserve-loadtest", "init", "m", _option(form), address, "--output", str(file))
    assert written.returncode == 0, written.stderr
    assert f"locust -f {file} --host {address}" in written.stdout
    file.write_text(file.read_text().replace("between(0.5, 2)", "between(0.001, 0.01)"))
    before = _predictions(served)
    ended = _locust(file, address)
    counted = requests_in(ended.stdout)
    assert list(counted) == ["m", "total"]
    assert counted["m"] == _predictions(served) - before
    again = forked_command.run("tpuserve-loadtest", "init", "m", _option(form), address, "--output", str(file))
    assert again.returncode == 2
    assert "exists. Set another file with --output." in " ".join(again.stderr.split())


def _locust(file: Path, host: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [LOCUST, "-f", str(file), "--host", host, "--headless", "--only-summary", "-u", "2", "-r", "2"]
    ended = subprocess.run(
        [*command, "-t", "3s", *arguments, *LENIENT[:2]], capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended


def _predictions(served: Served) -> int:
    """Return the number of predictions that the server has answered with success, by its own metrics."""
    with urllib.request.urlopen(f"{served.server.rest}/metrics", timeout=10) as page:
        text = page.read().decode()
    # Requests for metadata have no version.
    found = re.findall(
        r'^tpuserve_requests_total\{code="OK",.*model_name="m",.*version="1"\} (\S+)$', text, re.MULTILINE
    )
    return int(sum(map(float, found)))


def _option(form: str) -> str:
    return "--grpc" if form.endswith("grpc") else "--rest"


def _address(server: RunningServer, form: str) -> str:
    return f"{form}://{server.grpc if form.endswith('grpc') else server.rest.removeprefix('http://')}"
