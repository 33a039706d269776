"""Tests of the table of findings: a verdict that is right, one that is wrong, and the judgement of generated series."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.loadgen.findings import Environment, Seen, findings
from benchmarks.loadgen.truth import truth

INSTALLED = Environment(Path(sys.executable))


def test_the_names_of_the_findings_differ() -> None:
    names = [finding.name for finding in findings()]
    assert len(set(names)) == len(names)


def test_patterns_without_a_finding_make_an_empty_table() -> None:
    result = CliRunner().invoke(truth, ["nothing*"])
    assert (result.exit_code, "0 of 0 verdicts are right" in result.output) == (0, True)


@pytest.mark.parametrize("row", ["compare, generated: equal, six rounds", "soak, generated: steady"])
def test_generated_series_are_judged_by_the_environments_own_rules(row: str) -> None:
    [verdict] = INSTALLED.generated(row, 1)
    assert verdict in ("same", "unclear", "steady")


def test_an_unknown_row_is_reported_as_broken() -> None:
    [verdict] = INSTALLED.generated("compare, generated: unknown", 1)
    assert verdict.startswith("broken: KeyError")


def test_a_seen_verdict_is_compared_with_the_servers_record() -> None:
    [finding] = [each for each in findings() if each.name == "run, rest: error instead of answers"]
    seen = finding.judge(INSTALLED)
    assert isinstance(seen, Seen)
    # The server spoiled each answer after the first 60.
    spoiled, sent = (int(word.replace(",", "")) for word in seen.record.split()[::2][:2])
    assert spoiled == sent - 60
