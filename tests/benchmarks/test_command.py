"""Tests for `python -m benchmarks`, which lists the benchmarks and forwards arguments to them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, summary
from benchmarks.export.export_memory import CASES

ROOT = Path(__file__).parents[2]
README = ROOT / "benchmarks" / "README.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_without_a_name_every_benchmark_is_listed(arguments: tuple[str, ...]) -> None:
    page = run(*arguments).stdout
    assert all(f"  {name} " in page for name in BENCHMARKS)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    refused = run("speed")
    assert refused.returncode == 2
    assert "'overhead'" in refused.stderr


def test_a_benchmark_gets_its_own_arguments() -> None:
    done = run("simulate", "--quick", "--jitter", "2")
    assert done.returncode == 2
    assert "python -m benchmarks simulate" in done.stderr
    assert "--jitter" in done.stderr


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_says_what_it_measures_and_has_a_section(name: str) -> None:
    assert summary(name).endswith((".", ":"))
    assert f"\n## {name}: " in README.read_text()


def test_benchmarks_start_only_programs_that_exist() -> None:
    programs = {path.name for path in (ROOT / "benchmarks").rglob("*.py")}
    for source in (ROOT / "benchmarks").rglob("*.py"):
        for name in re.findall(r'"([a-z_/]+\.py)"', source.read_text(encoding="utf-8")):
            assert (ROOT / name).is_file() if "/" in name else name in programs, f"{source.name} starts {name}"


def test_exports_that_are_measured_have_their_models() -> None:
    for case in CASES:
        assert (ROOT / f"benchmarks/export/{case.module}.py").is_file()
