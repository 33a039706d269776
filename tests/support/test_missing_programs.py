import re
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.support.optional import PACKAGES, missing, needs


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.usefixtures("bare_machine")
def test_tests_of_missing_programs_skip_and_name_the_packages() -> None:
    assert missing("h2load", "wrk") == "needs apt-get install nghttp2-client wrk"
    assert needs("curl").mark.args == (True,)
    assert needs("curl").mark.kwargs == {"reason": "needs apt-get install curl"}


@pytest.mark.usefixtures("bare_machine")
def test_tests_of_missing_programs_run_and_so_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert missing(*PACKAGES) == ""
    assert needs("curl").mark.args == (False,)


@pytest.mark.usefixtures("bare_machine")
def test_tests_of_installed_programs_run(tmp_path: Path) -> None:
    program = tmp_path / "curl"
    program.touch(mode=0o755)
    assert missing("curl") == ""
    assert missing("curl", "wrk") == "needs apt-get install wrk"


def test_ci_installs_every_such_program() -> None:
    # util-linux is always installed on Debian.
    lists = re.findall(r"debian_packages\+?=\(([^)]*)\)", (ROOT / ".ci/run").read_text())
    deployments = (ROOT / ".ci/run-deployments").read_text().partition("debian-packages ")[2].partition("\n")[0].split()
    needed = {package for packages in PACKAGES.values() for package in packages.split()}
    assert needed - {"util-linux"} <= {*" ".join(lists).split(), *deployments}
