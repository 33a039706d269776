"""Tests for `tpuserve loadtest mlperf` in a separate process against a real server, in seconds instead of minutes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.support import forked_command

# The defaults are 10 s and 2 s.
BRIEF = {"tpuserve_loadtests.mlperf.options.QUICK_S": 4.0, "tpuserve_loadtests.cli.search_command._FIRST_S": 0.5}
# The machine is small and busy, and the tests are not about the generator's or the server's speed.
BUSY_IS_FINE = ["--generator-limit", "note", "--warm-up", "200ms"]


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def mlperf(*arguments: str) -> forked_command.Ended:
    return forked_command.run("tpuserve-loadtest", "mlperf", MODEL, *arguments, constants=BRIEF)


def run(server: Doubling, *arguments: str) -> tuple[int, dict[str, Any], str]:
    done = mlperf("--grpc", server.grpc_address, *BUSY_IS_FINE, *arguments, "--json")
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def unsatisfied(report: dict[str, Any]) -> list[str]:
    return [each["name"] for each in report["constraints"] if not each["satisfied"]]


@pytest.mark.parametrize(
    ("scenario", "rows", "needed"), [("single-stream", 1, 64), ("multi-stream", 8, 662), ("offline", 32, 1)]
)
def test_queries_have_the_samples_that_the_rules_say(server: Doubling, scenario: str, rows: int, needed: int) -> None:
    code, report, errors = run(server, "--scenario", scenario, "--duration", "700ms")
    assert code == 99, errors
    assert report["result"] == "INVALID"
    assert "Min duration satisfied" in unsatisfied(report)
    assert "not verified by MLCommons" in report["disclaimer"]
    assert set(server.rows) == {rows}
    assert report["samples"] == rows * report["queries"]
    # The number of queries in this time depends on the machine.
    assert (report["metric"] is not None) == (report["queries"] >= needed)


def test_a_rate_is_held_against_its_latency_without_a_search(server: Doubling, tmp_path: Path) -> None:
    options = ["--scenario", "server", "--target-qps", "200", "--quick", "--html", str(tmp_path / "server.html")]
    code, report, errors = run(server, *options, "--latency", "5s")
    assert code == 0, (report, errors)  # too short for the rules, which --quick permits
    assert report["result"] == "INVALID"
    assert report["too_short_for_the_rules"]
    assert unsatisfied(report) == ["Min duration satisfied"]
    assert 0 < report["metric"] <= 210  # lower if the machine is busy
    page = (tmp_path / "server.html").read_text()
    assert "too short for the rules; all other rules are kept" in page
    assert "p99 of at most 5000 ms" in page
    assert "Trials by rate" not in page
    assert report["search"] is None


def test_a_latency_that_no_rate_keeps_is_told(tmp_path: Path) -> None:
    with serving(Doubling(service_s=0.02)) as server:
        options = ["--scenario", "server", "--latency", "10ms", "--quick", "--html", str(tmp_path / "server.html")]
        options += ["--junit", str(tmp_path / "server.xml")]
        code, report, errors = run(server, *options)
    assert code == 99, (report, errors)
    assert report["result"] is None
    assert report["search"]["rate_per_s"] is None
    assert "No rate holds: a single user already misses" in errors
    suite = ElementTree.parse(tmp_path / "server.xml").getroot()
    assert [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None] == [
        "Server is VALID"
    ]
    page = (tmp_path / "server.html").read_text()
    assert "a single user already misses" in page
    assert "not verified by MLCommons" in page


def test_the_summary_is_laid_out_as_loadgens(server: Doubling, tmp_path: Path) -> None:
    options = ["--scenario", "single-stream", "--duration", "1", "--junit", str(tmp_path / "mlperf.xml")]
    done = mlperf("--grpc", server.grpc_address, *BUSY_IS_FINE, *options)
    assert done.returncode == 99, done.stderr
    lines = done.stdout.splitlines()
    assert "Result by MLPerf Inference's rules. Not a submission, and not verified by MLCommons Association." in lines
    assert "Scenario : SingleStream" in lines
    assert "Result is : INVALID" in lines
    assert "  Min duration satisfied : NO (1.0 s of 600 s)" in lines
    assert any(line.startswith("Early stopping 90th percentile estimate (ns) : ") for line in lines)
    assert any(
        line.startswith("  note: the time breakdown needs the server's metrics; set --server-metrics") for line in lines
    )
    suite = ElementTree.parse(tmp_path / "mlperf.xml").getroot()
    assert suite.get("name") == f"loadtest mlperf {MODEL}"
    verdict = suite.find("testcase[@name='SingleStream is VALID']/failure")
    assert verdict is not None
    assert verdict.get("message") == "INVALID: Min duration satisfied: no, 1.0 s of 600 s"
    assert "Result is : INVALID" in (suite.findtext("system-out") or "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scenario", "server"], "needs --latency"),
        (["--scenario", "offline", "--target-qps", "5"], "--target-qps applies only to --scenario server"),
        (["--scenario", "single-stream", "--users", "5"], "--users applies only to --scenario offline"),
        (["--scenario", "multi-stream", "--rows", "4"], "has 8 samples"),
        (["--scenario", "single-stream", "--quick", "--duration", "5"], "exclude each other"),
        (["--scenario", "single-stream", "--protocol", "both"], "measures one protocol"),
        (["--scenario", "single-stream", "--html", "nowhere/page.html"], "Directory nowhere does not exist"),
    ],
)
def test_what_cannot_be_run_is_exit_code_2(arguments: list[str], complaint: str) -> None:
    done = mlperf(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
