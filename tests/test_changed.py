"""Tests of the choice of tests for a change, on this repository's own modules."""

import subprocess
from pathlib import Path

import pytest

from tests import changed
from tests.changed import Dependencies, changed_since


@pytest.fixture(scope="module")
def dependencies() -> Dependencies:
    return Dependencies()


def test_a_module_runs_the_tests_that_import_it_and_those_of_the_program_with_it(dependencies: Dependencies) -> None:
    tests = dependencies.tests_of(["server/tpuserve_server/core/models/policy.py"])
    assert {"tests/server/core/models/test_policy.py", "tests/e2e/test_start.py"} <= {*tests}
    assert not [test for test in tests if test.startswith(("tests/exporter/deployment", "tests/formats"))]


def test_a_command_runs_the_tests_that_start_its_program(dependencies: Dependencies) -> None:
    tests = dependencies.tests_of(["loadtests/tpuserve_loadtests/cli/__init__.py"])
    assert "tests/e2e/console_page/test_reports.py" in tests


def test_fixtures_run_the_tests_below_them(dependencies: Dependencies) -> None:
    tests = dependencies.tests_of(["tests/contract/conftest.py"])
    assert {test.rpartition("/")[0] for test in tests} == {"tests/contract"}
    assert len(tests) == len([*(changed.ROOT / "tests/contract").glob("test_*.py")])


def test_another_file_runs_the_tests_that_read_documents_and_those_that_name_it(dependencies: Dependencies) -> None:
    tests = dependencies.tests_of(["docs/reference/metrics.md"])
    assert {"tests/docs", "tests/deploy", "tests/docs/test_serving_reference.py"} <= {*tests}


def test_a_file_of_a_package_runs_the_tests_of_the_package(dependencies: Dependencies) -> None:
    tests = dependencies.tests_of(["server/tpuserve_server/protocols/console/page/main.js"])
    assert "tests/e2e/console_page/test_overview.py" in tests


def test_dependencies_of_everything_run_everything(dependencies: Dependencies) -> None:
    assert dependencies.tests_of(["tests/test_changed.py", "pyproject.toml"]) == ["tests"]
    assert dependencies.tests_of(["gone.py"]) == []


def test_changes_are_committed_edited_and_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "ROOT", tmp_path)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("same", "committed", "edited"):
        (tmp_path / name).write_text(name)
    git("init", "--initial-branch=main")
    git("add", ".")
    git("commit", "--message=base")
    git("switch", "--create=work")
    (tmp_path / "committed").write_text("more")
    git("commit", "--all", "--message=change")
    (tmp_path / "edited").write_text("more")
    (tmp_path / "new").write_text("new")
    assert changed_since("main") == ["committed", "edited", "new"]
