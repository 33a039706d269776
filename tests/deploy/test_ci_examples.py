"""Tests for the examples of load tests in CI.

The programs parse the example commands, and the tests run the script's decisions.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tests.deploy.ci_examples import CI, build_scripts, workflow_scripts
from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import parse_flags
from tpuserve_client.cli import status
from tpuserve_command.group import tpuserve
from tpuserve_loadtests.cli import loadtest

SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(CI.glob("*.sh"))}
SCRIPT = CI / "loadtest.sh"
# Variables of the scripts, the job and the build.
SETTINGS = {
    "MODEL": "digits", "MODELS": "models", "CONFIG": "models.config", "CHECKPOINT": "checkpoints", "TPU": "v5e:1x1",
    "BUILDER": "examples.digits.model:build", "RATE": "200", "P99": "50ms", "LIVE": "stable", "NEW": "2",
    "GRPC": "localhost:8500", "PRODUCTION": "tpuserve:8500", "REPORTS": "reports", "ROLLOUT_OPTIONS": "--soak 5m",
    "EXPORT_OPTIONS": "--labelled README.md --expect accuracy>=0.9", "RUN_OPTIONS": "--users 8",
    "COMPARE_OPTIONS": "--unclear note", "SOURCE": "git-patch",
    "REPLICA_OPTIONS": "--replicas a:8500 --replicas b:8500",
}  # fmt: skip


def scripts() -> dict[str, str]:
    """Return every shell script of the examples, by file and step."""
    found = dict(SCRIPTS)
    found |= {f"github-actions: {step}": script for step, script in workflow_scripts().items()}
    found |= {f"cloudbuild: {step}": script for step, script in build_scripts().items()}
    return found


def commands(script: str) -> list[list[str]]:
    """Return the words of each `tpuserve …` command in a script, with variables substituted."""
    joined = script.replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if line.strip().startswith("tpuserve ")]
    lines = [line.replace('"$(cat "$REPORTS/version")"', "2") for line in lines]
    replaced = [re.sub(r"\$\{?(\w+)(:-)?\}?", lambda name: SETTINGS[name[1]], line) for line in lines]
    return [shlex.split(re.sub(r"\s*>.*$", "", line) if " serve " in line else line) for line in replaced]


ALL = [(where, words) for where, script in scripts().items() for words in commands(script)]


def parse(group: click.Group, words: list[str]) -> click.Context:
    """Parse a command without running it. The options of those in other programs are not checked.

    Raises:
        click.UsageError: An option is unknown.
        AssertionError: The command is unknown.
    """
    name, *rest = words
    command = group.get_command(click.Context(group), name)
    assert command is not None, name
    return command.make_context(name, rest)


def test_there_are_commands_to_be_checked() -> None:
    found = {tuple(words[1:3]) for _, words in ALL}
    assert {("loadtest", "run"), ("loadtest", "compare"), ("status", "digits"), ("rollout", "digits")} <= found
    assert ("export", "checkpoints") in found
    assert any(words[1] == "serve" for _, words in ALL)


@pytest.mark.parametrize(("where", "words"), ALL)
def test_every_command_has_the_options_that_are_used(where: str, words: list[str]) -> None:
    program, name, *rest = words
    assert program == "tpuserve"
    if name == "serve":
        parse_flags(rest)
    elif name == "status":
        status.make_context(name, rest)
    else:
        parse(*((loadtest, rest) if name == "loadtest" else (tpuserve, [name, *rest])))


def test_an_option_that_is_not_there_would_be_found() -> None:
    with pytest.raises(click.UsageError, match="--ratio"):
        parse(loadtest, ["run", "digits", "--ratio", "3"])


@pytest.mark.parametrize("where", scripts())
def test_every_script_is_one_that_bash_reads(where: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=scripts()[where], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_servers_configuration_serves_a_new_version_next_to_the_live_one() -> None:
    parsed = text_format.Parse(
        (CI / "models.config").read_text(encoding="utf-8"), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = parsed.model_config_list.config
    assert model.name == SETTINGS["MODEL"]
    assert set(model.version_labels) == {SETTINGS["LIVE"]}
    assert model.model_version_policy.latest.num_versions == 2


def test_substitutions_are_all_defined_and_used() -> None:
    text = (CI / "cloudbuild.yaml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$(_[A-Z_]+)", text))
    assert used == set(yaml.safe_load(text)["substitutions"])


class Machine:
    """Runs the script with a `tpuserve` stub that exits with scripted codes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, codes: dict[str, int], **environment: str) -> subprocess.CompletedProcess[str]:
        cases = "".join(f"{name}) exit {code};;\n" for name, code in codes.items())
        program = self.folder / "tpuserve"
        program.write_text(f'#!/bin/bash\necho "$*" >> "{self.folder}/calls"\ncase $2 in\n{cases}esac\n')
        program.chmod(0o755)
        path = f"{self.folder}:{os.environ['PATH']}"
        known = {"PATH": path, "MODEL": "digits", "NEW": "2", "REPORTS": str(self.folder / "reports"), **environment}
        return subprocess.run([SCRIPT], env=known, cwd=self.folder, capture_output=True, text=True, check=False)

    @property
    def calls(self) -> list[str]:
        return [line.split()[1] for line in (self.folder / "calls").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_version_that_passes_both_is_let_through(machine: Machine) -> None:
    assert machine.run({"run": 0, "compare": 0}).returncode == 0
    assert machine.calls == ["run", "compare"]


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({"run": 99, "compare": 0}, "with version 2: a gate failed under load"),
        ({"run": 0, "compare": 99}, "Do not replace version 'stable' of digits with version 2: it is slower"),
        ({"run": 98, "compare": 0}, "The load generator was too slow for a result"),
        ({"run": 0, "compare": 97}, "The sample was too small for a result"),
        ({"run": 0, "compare": 98}, "The load generator was too slow for a result"),
        ({"run": 3, "compare": 0}, "exit code 3"),
    ],
)
def test_other_outcomes_are_reported_and_end_the_job(machine: Machine, codes: dict[str, int], message: str) -> None:
    ended = machine.run(codes)
    assert ended.returncode == max(codes.values())
    assert message in ended.stderr
    assert "::error" not in ended.stderr


def test_github_gets_an_annotation(machine: Machine) -> None:
    ended = machine.run({"run": 98, "compare": 0}, GITHUB_ACTIONS="true")
    assert ended.stdout.startswith("::error title=Load test::The load generator was too slow")


def test_a_missing_model_is_reported(machine: Machine) -> None:
    ended = machine.run({"run": 0, "compare": 0}, MODEL="")
    assert ended.returncode != 0
    assert "name of the model to test" in ended.stderr


def test_the_build_keeps_the_reports_of_failed_gates_and_ends_with_their_exit_code(machine: Machine) -> None:
    machine.run({"run": 99, "compare": 0, "digits": 0})  # `tpuserve status digits` succeeds
    (machine.folder / "reports").mkdir(exist_ok=True)
    (machine.folder / "reports/version").write_text("2\n", encoding="utf-8")
    settings = {
        "PATH": f"{machine.folder}:{os.environ['PATH']}",
        **SETTINGS,
        "REPORTS": str(machine.folder / "reports"),
    }
    ended = {}
    for step in ("Gates", "Decide"):
        script = build_scripts()[step].replace("/workspace", str(machine.folder))
        script = script.replace("server.log", str(machine.folder / "server.log"))
        ended[step] = subprocess.run(["bash", "-c", script], cwd=ROOT, env=settings, check=False).returncode
    assert ended == {"Gates": 0, "Decide": 99}


def test_a_missing_version_is_reported(machine: Machine) -> None:
    ended = machine.run({"run": 0, "compare": 0}, NEW="")
    assert ended.returncode != 0
    assert "version to test" in ended.stderr
