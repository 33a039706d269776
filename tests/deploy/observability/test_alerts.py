"""Tests for the alert rules by promtool: each fires and stays quiet as intended, and each has a runbook section."""

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.observability.alert_case import RULES, AlertCase, alert_rules
from tests.deploy.observability.alert_cases import CASES
from tests.deploy.observability.promtool import run_promtool
from tests.support.optional import needs

RUNBOOK = Path("docs/how-to/operate/alerts.md")


@needs("promtool")
def test_promtool_accepts_the_rules() -> None:
    assert run_promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES).count("SUCCESS") == len(RULES)


@needs("promtool")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_alert_fires_when_it_should_and_only_then(case: AlertCase, tmp_path: Path) -> None:
    tests = tmp_path / "tests.yaml"
    tests.write_text(yaml.safe_dump(case.unit_tests()))
    run_promtool("test", "rules", tests)


def test_every_alert_has_its_case() -> None:
    assert [case.alert for case in CASES] == list(alert_rules())


@pytest.mark.parametrize("name", alert_rules())
def test_alert_links_to_its_section_of_the_runbook(name: str) -> None:
    rule = alert_rules()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def test_runbook_has_one_section_for_each_alert_in_order() -> None:
    headings = re.findall(r"^### (Tpuserve\w+)$", (ROOT / RUNBOOK).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(alert_rules())


def test_runbook_section_has_every_part() -> None:
    text = (ROOT / RUNBOOK).read_text(encoding="utf-8")
    for section in text.split("\n### ")[1:]:
        parts = re.findall(r"^- \*\*(\w[\w ]*)\.\*\*", section, re.MULTILINE)
        assert parts == ["Meaning", "First look", "Causes", "Action"], section.partition("\n")[0]
