"""A run with several processes keeps groups of tests together, and starts a shared server once per group."""

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, pytest

@pytest.fixture(scope="session", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in "ab"])
def server(request):
    with open(f"started-{request.param}", "a") as file:
        print(os.getpid(), file=file)

@pytest.mark.parametrize("number", range(8))
def test_of_it(server, number):
    pass
"""


def test_tests_of_one_group_share_a_process(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    for name in ("rest.txt", "deployments.txt"):
        (tmp_path / name).touch()
    (tmp_path / "test_groups.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "--dist=loadgroup", "-pno:cacheprovider", "--rootdir=."]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name in "ab":
        assert len((tmp_path / f"started-{name}").read_text().splitlines()) == 1
