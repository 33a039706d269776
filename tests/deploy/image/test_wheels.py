"""Tests that the locks of every target have wheels, as a dry run, because some targets take several GB."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image.targets import TARGETS
from tests.deploy.dockerfile import ROOT
from tests.support.optional import cannot_run

OFFLINE = re.compile(r"error sending request|dns error|timed out", re.IGNORECASE)
# Debian 12's glibc.
AMD64, ARM64 = "x86_64-manylinux_2_36", "aarch64-manylinux_2_36"
# The packages of each target, and those of the stage that compiles the server.
LOCKS = {name: target.locks for name, target in TARGETS.items()} | {"compiler": ("compiler",)}
WITHOUT_ARM64 = {"tpu": "libtpu", "loadtests": "hdrhistogram"}


def dry_run(target: str, platform: str, empty: Path) -> subprocess.CompletedProcess[str]:
    """Print the packages that uv would install from the locks of a target, without building any."""
    locks = [f"requirements/{lock}.lock" for lock in LOCKS[target]]
    ran = subprocess.run(
        [
            ROOT / ".venv/bin/uv", "pip", "sync", "--dry-run", "--no-build", "--require-hashes",
            "--python", sys.executable, "--python-platform", platform, "--target", empty, *locks,
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode != 0 and OFFLINE.search(ran.stderr):
        cannot_run(f"needs the package index: {ran.stderr.strip().splitlines()[-1]}")
    return ran


def named(listed: str) -> set[str]:
    return {line.split()[1].partition("==")[0] for line in listed.splitlines() if line.startswith(" + ")}


@pytest.mark.parametrize(
    ("target", "present", "absent"),
    [
        ("cpu", {"tensorflow", "fastapi", "ai-edge-litert"}, {"jax"}),
        ("pjrt", {"jax", "fastapi"}, {"tensorflow", "keras", "libtpu"}),
        ("tpu", {"tensorflow", "fastapi", "jax", "libtpu"}, {"jax-cuda13-pjrt"}),
        ("cuda", {"tensorflow", "fastapi", "jax", "jax-cuda13-pjrt"}, {"libtpu"}),
        ("exporter", {"tensorflow", "flax", "libtpu", "gcsfs", "s3fs"}, {"fastapi", "torch"}),
        ("loadtests", {"locust", "opentelemetry-sdk"}, {"tensorflow", "jax"}),
        ("compiler", {"mypy", "ziglang", "fastapi"}, {"tensorflow", "jax"}),
    ],
)
def test_target_installs_its_packages_from_wheels(
    target: str, present: set[str], absent: set[str], tmp_path: Path
) -> None:
    listed = dry_run(target, AMD64, tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert present <= named(listed.stderr)
    assert not absent & named(listed.stderr)


@pytest.mark.parametrize("target", LOCKS)
def test_documented_targets_have_wheels_for_arm64(target: str, tmp_path: Path) -> None:
    listed = dry_run(target, ARM64, tmp_path)
    platforms = TARGETS[target].platforms if target in TARGETS else ("linux/amd64", "linux/arm64")
    assert (target in WITHOUT_ARM64) is ("linux/arm64" not in platforms)
    if target in WITHOUT_ARM64:
        assert f"{WITHOUT_ARM64[target]}==" in listed.stderr
        assert listed.returncode != 0
    else:
        assert listed.returncode == 0, listed.stderr
