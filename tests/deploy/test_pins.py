"""Tests that everything from outside is pinned by a hash: packages, images and actions."""

import re
import shlex
from pathlib import Path

import pytest

from deploy.release.__main__ import build as release_build
from tests.deploy.ci_examples import CI, build
from tests.deploy.compose import COMPOSE
from tests.deploy.dockerfile import ROOT, read_dockerfile
from tests.deploy.manifests import read

LOCKS = sorted([*(ROOT / "requirements").glob("*.lock"), *ROOT.glob("*/**/requirements.lock")])
LOCKS = [path for path in LOCKS if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\}?$")
# Images of this repository, which a user builds.
OWN = re.compile(r"^(\$\{\w+:-)?tpuserve-\w+")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_package_of_a_lock_has_a_version_and_hashes(lock: Path) -> None:
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if line and not line.startswith((" ", "#"))]
    assert lines
    for line in lines:
        assert re.match(r"^[\w.-]+(\[[\w,-]+\])?==[^\s;]+( ;[^\\]+)? \\$", line), line


def test_every_image_of_others_has_a_digest() -> None:
    images = [service["image"] for service in COMPOSE["services"].values()]
    others = [image for image in images if not OWN.match(image)]
    assert len(others) == 3
    assert [image for image in others if not DIGEST.search(image)] == []
    assert all(DIGEST.search(image) for image in read_dockerfile().images())


def test_cloud_build_uses_the_image_of_the_dockerfile() -> None:
    # Google's own image of its command has no digest here: Cloud Build pulls it from its own registry.
    images = {step["name"] for step in build()["steps"]}
    (ours,) = read_dockerfile().images()
    assert {image for image in images if "cloud-cli" not in image} == {ours.removeprefix("docker.io/library/")}


@pytest.mark.parametrize(
    "path", [CI / "github-actions.yaml", CI / "security.yaml", CI / "release.yaml"], ids=lambda path: path.name
)
def test_every_action_is_a_commit_with_its_tag_in_a_comment(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", line)] == []


def test_the_audit_has_few_rights_and_fails_without_a_database() -> None:
    workflow = read(CI / "security.yaml")
    assert workflow["permissions"] == {"contents": "read"}
    steps = {step.get("name"): step for step in workflow["jobs"]["packages"]["steps"]}
    assert steps["Vulnerabilities"]["run"] == "make audit"
    assert "IF_REACHABLE" not in (CI / "security.yaml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("Vulnerabilities", "Licences", "Bills of materials"):
        target = steps[name]["run"].removeprefix("make ")
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE), target


def test_the_release_has_few_rights_and_uses_options_that_exist() -> None:
    workflow = read(CI / "release.yaml")
    assert workflow["permissions"] == {"contents": "read"}
    steps = {step.get("name"): step for step in workflow["jobs"]["release"]["steps"]}
    command = steps["Build and sign"]["run"].replace("\\\n", " ")
    line = next(line for line in command.splitlines() if line.startswith(".ci/release "))
    assert release_build.make_context("build", shlex.split(line)[1:]).params["targets"] == (
        "cpu", "pjrt", "exporter", "loadtests",
    )  # fmt: skip
    assert steps["Verify"]["run"].startswith(".venv/bin/python -m deploy.release verify dist ")
    script = (ROOT / ".ci/release").read_text(encoding="utf-8")
    assert 'exec .venv/bin/python -m deploy.release build "$@"' in script
