"""Tests for annotations and the job's summary of GitHub Actions."""

import re
from pathlib import Path

import pytest

from tests.loadtests.doubling_server import MODEL, Doubling
from tests.loadtests.test_loadtest_files import loadtest, server
from tpuserve_loadtests.rendering.github import annotations, summary
from tpuserve_loadtests.rendering.report import Case, Headline, Page, Report, Row, Table

__all__ = ["server"]  # a fixture


def report(*cases: Case, headline: Headline = Headline("bad", "Failed"), rows: tuple[Row, ...] = ()) -> Report:  # noqa: B008  frozen
    page = Page("Load test of m", "", headline, [], [Table("Checks", ["check", "figure"], rows)], {})
    return Report("loadtest", "m", 99, cases, dict, lambda: page)


def unescaped(text: str) -> str:
    """Undo the escapes as the runner does (ActionCommand.cs), `%25` last."""
    for escape, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(escape, character)
    return text


def test_each_failed_check_is_an_error_with_its_text() -> None:
    name, problem = "p99 <= 20 ms, 1::2", "100 % of requests:\r\n3,000 x ::error::gone %0A"
    (line,) = annotations(report(Case("passed"), Case("other", skipped="not reached"), Case(name, problem)))
    found = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", line)
    assert found is not None
    assert unescaped(found[1]) == f"loadtest m: {name}"
    assert unescaped(found[2]) == problem


def test_inconclusive_results_are_warnings() -> None:
    (line,) = annotations(report(Case("there are enough rounds", "too few"), headline=Headline("warn", "Inconclusive")))
    assert line == "::warning title=loadtest m%3A there are enough rounds::too few"


def test_summary_keeps_markup_of_servers_as_text() -> None:
    rows = (Row("a|b\n<img src=x>", ["[link](http://x) `code`"]),)
    text = summary(report(headline=Headline("bad", "Failed the gate", ["p99 30 ms"]), rows=rows))
    assert text.startswith("### Load test of m\n\n**Failed the gate**\n\n- p99 30 ms\n")
    assert r"| a\|b \<img src=x\> | \[link\](http://x) \`code\` |" in text


@pytest.mark.parametrize(("environment", "arguments"), [("true", ()), ("", ("--annotations", "github"))])
def test_run_in_a_job_annotates_it_and_keeps_standard_output_for_json(
    server: Doubling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: str, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", environment)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    load = ("--users", "1", "--duration", "300ms", "--warm-up", "0", "--fail-if", "max>0.001ms", "--json")
    ended = loadtest(server, "run", MODEL, *load, *arguments)
    assert ended.returncode == 99
    assert ended.stdout.startswith("{")
    assert "::error title=loadtest doubling%3A max <= 0.001 ms::failed" in ended.stderr
    assert "#### Checks" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_annotations_are_off_outside_of_jobs(server: Doubling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    ended = loadtest(
        server, "run", MODEL, "--users", "1", "--duration", "300ms", "--warm-up", "0", "--fail-if", "max>0ms"
    )
    assert ended.returncode == 99
    assert "::" not in ended.stderr
