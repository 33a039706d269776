"""Tests for the Dockerfile as text.

tests/deploy/image builds and runs the targets.
"""

import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest

from deploy.image.targets import TARGETS, Target
from tests.deploy.dockerfile import ROOT, environment, instruction, read_dockerfile

DOCKERFILE = read_dockerfile()


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    linted = subprocess.run(
        [hadolint, "--failure-threshold", "style", "--disable-ignore-pragma", ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")


def test_every_stage_is_built_on_one_digest() -> None:
    (base,) = DOCKERFILE.images()
    image, digest = base.split("@")
    assert ":3.11." in image, "the locks are tested with Python 3.11"
    algorithm, _, value = digest.partition(":")
    assert algorithm == "sha256"
    assert len(bytes.fromhex(value)) == 32


def test_targets_are_those_that_are_tested_and_cpu_is_the_default() -> None:
    targets = [name for name, stage in DOCKERFILE.stages.items() if stage.base in ("server", "tool")]
    assert set(targets) == TARGETS.keys()
    assert targets[-1] == list(DOCKERFILE.stages)[-1] == "cpu"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_target_is_made_of_its_locks_and_its_project(target: Target) -> None:
    locks = [f"requirements/{lock}.lock" for lock in target.locks]
    steps = DOCKERFILE.stages[f"{target.name}-packages"].instructions
    assert instruction(steps, "COPY").words == [*locks, "requirements/"]
    first, *others = instruction(steps, "RUN").text.split(" && ")
    assert first == f"uv pip sync --require-hashes {' '.join(locks)}"
    removal = [f"uv pip uninstall {' '.join(target.removed)}"] if target.removed else []
    assert others == [*removal, "python3 -m deploy.image.slim /opt/tpuserve"]
    installed = instruction(DOCKERFILE.stages[f"{target.project}-project"].instructions, "RUN").text
    # The server's wheel is compiled in a stage of its own.
    sources = ["./compiled/*.whl" if project == "server" else f"./{project}" for project in target.projects]
    assert " ".join(sources) in installed
    image = DOCKERFILE.stages[target.name].instructions
    assert [each.words for each in image if each.name == "COPY"] == [
        [f"--from={target.name}-packages", "/opt/tpuserve", "/opt/tpuserve"],
        [f"--from={target.project}-project", "/opt/project", "/opt/tpuserve"],
    ]
    assert f'org.opencontainers.image.title="{target.image}"' in instruction(image, "LABEL").text


@pytest.mark.parametrize("project", ["server", "exporter", "loadtests"])
def test_projects_are_installed_offline_without_packages(project: str) -> None:
    steps = DOCKERFILE.stages[f"{project}-project"].instructions
    copied = [each.words for each in steps if each.name == "COPY"]
    copied = [["compiled/*.whl"] * 2 if words[0] == "--from=compiler" else words for words in copied]
    assert all(source == destination for source, destination in copied)
    install, *others = instruction(steps, "RUN").text.split(" && ")
    # deploy/kubernetes is no project: the exporter links to its files.
    sources = " ".join(f"./{source}" for source, _ in copied if source != "deploy/kubernetes")
    assert install == f"uv pip install --offline --no-deps --no-sources --prefix /opt/project {sources}"
    assert others == ["rm /opt/project/.lock"]


def test_the_server_is_compiled_with_locked_packages() -> None:
    steps = DOCKERFILE.stages["compiler"].instructions
    commands = [each.text for each in steps if each.name == "RUN"]
    assert commands == [
        "uv pip sync --require-hashes requirements/compiler.lock",
        "/opt/tpuserve/bin/python -m deploy.installation.compiled /opt/compiled",
    ]
    taken = [each.words for each in DOCKERFILE.stages["server-project"].instructions if each.name == "COPY"]
    assert ["--from=compiler", "/opt/compiled", "compiled"] in taken


@pytest.mark.parametrize("target", TARGETS)
def test_image_runs_as_a_user_kubernetes_can_tell_is_not_root(target: str) -> None:
    image = DOCKERFILE.target(target)
    user, group = instruction(image, "USER").text.split(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    after = [each.name for each in image[image.index(instruction(image, "USER")) :]]
    assert not {"RUN", "COPY", "ADD"} & set(after), "what the server runs stays root's, so that it cannot be rewritten"


def test_signals_reach_the_server_itself() -> None:
    assert instruction(DOCKERFILE.final, "ENTRYPOINT").exec_form == ["tpuserve-serve"]
    assert instruction(DOCKERFILE.final, "STOPSIGNAL").text == "SIGTERM"


def test_image_is_used_as_the_stock_tensorflow_serving_image() -> None:
    settings = environment(DOCKERFILE.final)
    assert settings["MODEL_NAME"] == "model"
    assert settings["MODEL_BASE_PATH"] == "/models"
    assert instruction(DOCKERFILE.final, "EXPOSE").words == ["8500", "8501"]


def test_commands_of_the_stock_image_are_where_manifests_look_for_them() -> None:
    links = instruction(DOCKERFILE.stages["server"].instructions, "RUN").text
    scripts = tomllib.loads((ROOT / "server/pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    for ours, theirs in (
        ("tensorflow_model_server", "/usr/bin/tensorflow_model_server"),
        ("tpuserve-serve", "/usr/bin/tf_serving_entrypoint.sh"),
    ):
        assert f"ln -s /opt/tpuserve/bin/{ours} {theirs}" in links
        assert ours in scripts


@pytest.mark.parametrize("target", TARGETS)
def test_image_contains_the_licence(target: str) -> None:
    copies = [each.words for each in DOCKERFILE.target(target) if each.name == "COPY"]
    assert ["LICENSE", "/licenses/LICENSE"] in copies
    labels = " ".join(each.text for each in DOCKERFILE.target(target) if each.name == "LABEL")
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in labels


@pytest.mark.parametrize("target", TARGETS)
def test_image_says_what_it_is(target: str) -> None:
    labels = " ".join(each.text for each in DOCKERFILE.target(target) if each.name == "LABEL")
    for name in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert labels.count(f"org.opencontainers.image.{name}=") == 1


def test_build_context_holds_what_is_copied_and_starts_from_nothing() -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [
        word
        for stage in DOCKERFILE.stages.values()
        for each in stage.instructions
        if each.name == "COPY" and not each.text.startswith("--from=")
        for word in each.words[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(PurePosixPath(source).match(rule) for rule in allowed), source


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_device_s_lock_is_of_the_server_s_extra_and_of_the_jax_that_is_tested(device: str) -> None:
    extras = tomllib.loads((ROOT / "server/pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    asked = [
        line
        for line in (ROOT / f"requirements/{device}.in").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert asked == extras[device]
    for name in ("jax", "jaxlib", "ml-dtypes"):
        (locked,) = pins(device, name)
        assert pins("dev", name) == [locked]


def pins(lock: str, name: str) -> list[str]:
    lines = (ROOT / f"requirements/{lock}.lock").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.startswith(f"{name}==")]


def test_health_check_is_the_servers_own() -> None:
    assert instruction(DOCKERFILE.final, "HEALTHCHECK").exec_form == ["tpuserve-health"]
