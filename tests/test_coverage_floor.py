"""Tests of the floor on real coverage data: a small tree is measured and judged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.coverage_floor import LAYERS, Branches, branches_by_layer

SCRIPT = Path(__file__).with_name("coverage_floor.py")
SOURCE = """
def sign(value):
    if value < 0:
        return -1
    return 1
"""


def measure(folder: Path, arguments: dict[str, tuple[int, ...]]) -> subprocess.CompletedProcess[str]:
    """Call each layer's ``sign`` with its arguments under branch coverage, then judge the data."""
    (folder / "pyproject.toml").write_text("[tool.coverage.run]\nbranch = true\nsource = ['formats', 'server']\n")
    calls = []
    for layer, values in arguments.items():
        package = folder / LAYERS[layer]
        package.mkdir(parents=True)
        (package / "sign.py").write_text(SOURCE)
        module = LAYERS[layer].replace("/", ".")
        calls += [f"from {module}.sign import sign", *(f"sign({value})" for value in values)]
    (folder / "calls.py").write_text("\n".join(calls))
    # The outer run measures its children too. These two need a separate run.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    subprocess.run([sys.executable, "-m", "coverage", "run", "calls.py"], cwd=folder, env=environment, check=True)
    return subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_run_passes_when_every_branch_was_taken(tmp_path: Path) -> None:
    judged = measure(tmp_path, dict.fromkeys(LAYERS, (-1, 1)))
    assert judged.returncode == 0, judged
    assert [line.split()[:4] for line in judged.stdout.splitlines()[2:]] == [
        *([layer, "2", "of", "2"] for layer in LAYERS),
        ["together", "10", "of", "10"],
    ]


def test_run_fails_when_layers_miss_branches(tmp_path: Path) -> None:
    judged = measure(tmp_path, dict.fromkeys(LAYERS, (-1, 1)) | {"core": (1,), "wire": (1,)})
    assert judged.returncode == 1
    below = [line.split()[0] for line in judged.stdout.splitlines() if "BELOW" in line]
    assert below == ["core", "wire", "together"]


def test_run_fails_when_a_layer_was_not_measured(tmp_path: Path) -> None:
    judged = measure(tmp_path, {layer: (-1, 1) for layer in LAYERS if layer != "hosts"})
    assert judged.returncode == 1
    assert "hosts          0 of     0" in judged.stdout


def test_run_fails_when_there_is_no_data(tmp_path: Path) -> None:
    judged = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert judged.returncode == 1
    assert "cannot be read" in judged.stderr


def test_files_outside_the_layers_do_not_count() -> None:
    sums = branches_by_layer(
        {
            "server/tpuserve_server/core/terms/types.py": {"num_branches": 4, "covered_branches": 3},
            "server/tpuserve_server/corelike/types.py": {"num_branches": 100, "covered_branches": 0},
            "server/tpuserve_server/startup/app.py": {"num_branches": 100, "covered_branches": 0},
        }
    )
    assert sums["core"] == sums["together"] == Branches(covered=3, total=4)
    assert sums["core"].percent == pytest.approx(75.0)
