"""Outcomes of TensorFlow Serving's tests, read from the XML that absl's test runner writes."""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["passed", "failed", "not run"]
Outcomes: TypeAlias = Mapping[str, Outcome]

# The model of this test uses TF Text's ops, which TensorFlow alone lacks.
NEEDS_TF_TEXT = "test_tf_text"
# unittest's base class in TensorFlow counts its own context manager as a test, and skips it.
_NO_TEST = "test_session"


def read_outcomes(report: Path) -> Outcomes:
    """Read the outcome of every test in an xUnit report, by name."""
    cases = ET.parse(report).getroot().iter("testcase")
    return {case.attrib["name"]: _outcome(case) for case in cases if case.attrib["name"] != _NO_TEST}


def counted(outcomes: Outcomes) -> Outcomes:
    """Return the tests that a server without TF Text can pass."""
    return {name: outcome for name, outcome in outcomes.items() if name != NEEDS_TF_TEXT}


def summary(outcomes: Outcomes) -> str:
    """Count the passed tests, as in `29 of 29`."""
    of = counted(outcomes)
    return f"{sum(outcome == 'passed' for outcome in of.values())} of {len(of)}"


def table(outcomes: Outcomes) -> str:
    """Write a line for each test with its outcome, and the total, as Markdown."""
    lines = ["| test | outcome |", "| --- | --- |"]
    for name, outcome in outcomes.items():
        shown = f"{name} (not counted: needs TF Text)" if name == NEEDS_TF_TEXT else name
        lines.append(f"| {shown} | {outcome} |")
    lines.append(f"| **passed** | **{summary(outcomes)}** |")
    return "\n".join(lines)


def _outcome(case: "ET.Element") -> Outcome:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") == "suppressed"
    return "not run" if skipped else "passed"
