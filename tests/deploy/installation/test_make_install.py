"""Test of `make install`: an environment in which the `pip install` commands of the pages work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.optional import cannot_run
from tests.support.wheels import ROOT

pytestmark = [pytest.mark.slow]


def make_install(prefix: Path, packages: str) -> str:
    """Run `make install` and return its output. Skips the test without a package index."""
    command = ["make", "install", f"PREFIX={prefix}", f"PACKAGES={packages}", f"PYTHON={sys.executable}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "No matching distribution found for numpy" in ran.stderr or "Retrying" in ran.stderr:
        cannot_run("needs the package index")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_in_the_environment_pip_installs_every_distribution(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    printed = make_install(prefix, "tpuserve-client")
    assert printed.endswith(f"  source {prefix}/bin/activate\n  tpuserve --help\n")
    # A line of the pages, without a variable that hides the configuration of the environment.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    pip = [str(prefix / "bin/pip"), "install", "--quiet", "tpuserve-formats[manifest]", "tpuserve-client[image]"]
    subprocess.run(pip, env=environment, check=True)
    tpuserve = subprocess.run([prefix / "bin/tpuserve", "-h"], capture_output=True, text=True, check=True)
    assert "status" in tpuserve.stdout.partition("Not installed:")[0]
    # Damage a module and leave an old wheel, as an older tree would.
    module = next(prefix.glob("lib/python*/site-packages/tpuserve_formats/counted.py"))
    module.write_text("damaged")
    (prefix / "share/tpuserve/wheels/tpuserve_formats-0.0.1-py3-none-any.whl").touch()
    make_install(prefix, "tpuserve-client")
    assert module.read_text() != "damaged"
    assert not list(prefix.glob("share/tpuserve/wheels/*-0.0.1-*"))
