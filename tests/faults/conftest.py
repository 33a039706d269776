"""Fixtures of the fault tests: a server for many faults, and the table at the end of the run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.serving_models import save_kinds
from tests.e2e.running_server import START_TIMEOUT_S, run_configured_server
from tests.faults.fault_models import save_main, save_slow
from tests.faults.fault_row import PROPERTY, FaultRow
from tests.faults.fault_table import complete, json_table, markdown_table, text_table
from tests.faults.faulted_server import VERTEX_ROUTE, FaultedServer, Faults
from tests.faults.not_tested import NOT_TESTED
from tests.support.shared_memory import PREFIX

LABELS = {"m": 'version_labels { key: "stable" value: 3 }'}
# For clients that send their headers slowly. Longer than a busy machine stops a good client.
HEADER_TIMEOUT_S = 2
MAX_RESPONSE_BYTES = 32 << 20
FORMATS = {".json": json_table, ".md": markdown_table, ".txt": text_table}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-table", action="append", default=[], metavar="PATH", help="Write the table: .json, .md or .txt."
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run tests that share the server in one process."""
    if isinstance(item, pytest.Function) and "faulted" in item.fixturenames:
        item.add_marker(pytest.mark.xdist_group("faulted"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the rows of all tests of the run. Under pytest-xdist, the controller calls this."""
    reports = (report for group in terminalreporter.stats.values() for report in group)
    properties = (pair for report in reports for pair in getattr(report, "user_properties", ()))
    rows = {str(row): FaultRow.from_json(row) for name, row in properties if name == PROPERTY}
    if not rows:
        return
    table = complete(rows.values(), NOT_TESTED)
    terminalreporter.write_sep("=", "faults")
    terminalreporter.write(text_table(table))
    for path in map(Path, config.getoption("--fault-table", [])):
        path.write_text(FORMATS[path.suffix](table), encoding="utf-8")


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[FaultRow], None]:
    """Return a function that adds a row to the table."""
    properties = request.node.user_properties
    return lambda row: properties.append((PROPERTY, row.to_json()))


@pytest.fixture(scope="session")
def fault_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the base paths of the models."""
    folder = tmp_path_factory.mktemp("models")
    save_main(folder / "m" / "3")
    save_kinds(folder / "kinds" / "1")
    save_slow(folder / "slow" / "1")
    return folder


def model_config(folder: Path, *names: str) -> str:
    """Return a configuration of these models. Version 3 of `m` has the label `stable`."""
    models = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" {LABELS.get(name, "")} }}'
        for name in names
    )
    return f"model_config_list {{ {models} }}"


@pytest.fixture(scope="session")
def faulted(fault_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultedServer]:
    """Yield a server for faults that it must survive without a restart."""
    folder = tmp_path_factory.mktemp("faulted")
    config = folder / "models.config"
    config.write_text(model_config(fault_models, "m", "kinds", "slow"))
    flags = (
        f"--model_config_file={config}",
        "--model_name=m",
        f"--vertex_predict_route={VERTEX_ROUTE}",
        f"--max_receiving_bytes={256 << 20}",
        f"--max_connection_receiving_bytes={128 << 20}",
        f"--max_response_bytes={MAX_RESPONSE_BYTES}",
        f"--shared_memory_prefix={PREFIX}",
        "--max_num_load_retries=0",
        # The model `slow`.
        "--allowed_ops=WriteFile",
        f"--header_timeout_seconds={HEADER_TIMEOUT_S}",
    )
    with (
        run_configured_server(folder / "log", *flags, model="m") as running,
        FaultedServer(running) as server,
    ):
        server.wait_until_ready(START_TIMEOUT_S)
        server.check()
        yield server
        # No client can cause a line of the HTTP server or of Python in the log.
        log = running.log.read_text()
        assert [line for line in log.splitlines() if "Traceback" in line or "request failed" in line] == []


@pytest.fixture
def faults(faulted: FaultedServer, record: Callable[[FaultRow], None]) -> Faults:
    """Return the faults of the shared server."""
    return Faults(faulted, record)
