"""Runs the steps of the release examples in deploy/ci: train, export and check, load-test, roll out."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.ci_examples import CI, build, build_scripts, workflow, workflow_scripts
from tests.deploy.dockerfile import ROOT
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent
# Steps that need a registry, a repository or GitHub.
ELSEWHERE = {"Install", "Keep the labels", "Server log"}


# Short load tests on a small, busy machine. The tests are not about a few milliseconds.
LENIENT = "--arrivals constant --generator-limit note --warm-up 100ms"
COMPARISON = f"{LENIENT} --least-effect 4 --unclear note --rounds 3 --duration 400ms"
QUICK = {
    "RATE": "50",
    "P99": "5s",
    "RUN_OPTIONS": f"{LENIENT} --rate 200 --duration 8s",
    "COMPARE_OPTIONS": COMPARISON,
    "ROLLOUT_OPTIONS": f"{COMPARISON} --canary-duration 1s --soak 0",
}


@dataclass(frozen=True)
class Runner:
    """A machine that runs the steps of the workflow: a checkout, a base path for models, and free ports."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def at(cls, folder: Path) -> "Runner":
        """Prepare a runner in `folder`. Its server is also the first production server."""
        (folder / "deploy").mkdir()
        (folder / "deploy/ci").symlink_to(CI)
        (folder / "examples").symlink_to(ROOT / "examples")
        models = folder / "models"
        config = (CI / "models.config").read_text(encoding="utf-8").replace("gs://my-bucket/models", str(models))
        (folder / "models.config").write_text(config, encoding="utf-8")
        grpc, rest, second_grpc, second_rest = free_ports(4)
        job = {name: value for name, value in workflow()["env"].items() if "${{" not in value}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
        local = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "MODELS": str(models),
            "CONFIG": "models.config",
            "GRPC": f"localhost:{grpc}",
            "PRODUCTION": f"localhost:{grpc}",
            "REPLICAS": f"localhost:{grpc} localhost:{second_grpc}",
            "SECOND_GRPC": str(second_grpc),
            "SECOND_REST": str(second_rest),
            "TPUSERVE_SERVE_PORT": str(grpc),
            "TPUSERVE_SERVE_REST_API_PORT": str(rest),
        }
        return cls(folder, inherited | job | QUICK | local)

    def run(self, script: str, **variables: str) -> str:
        """Run one step in the checkout as GitHub does, and return its output. Background processes go on."""
        log = self.folder / "step.log"
        with log.open("w", encoding="utf-8") as output:
            step = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
                cwd=self.folder,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = log.read_text(encoding="utf-8")
        assert step.returncode == 0, f"{script}\n{text}"
        return text


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Return a runner whose models contain the live version 1. Stops the server that a step starts."""
    runner = Runner.at(tmp_path_factory.mktemp("release"))
    scripts = workflow_scripts()
    runner.run(scripts["Train"])
    runner.run(scripts["Export and check"])
    yield runner
    for server in runner.folder.glob("*.pid"):
        os.kill(int(server.read_text()), signal.SIGTERM)


def test_every_step_of_the_workflow_succeeds_and_the_rollout_moves_the_label(runner: Runner) -> None:
    scripts = {name: script for name, script in workflow_scripts().items() if name not in ELSEWHERE}
    # The test stops the process that the runner would stop at the end of the job.
    scripts["Start a server"] = scripts["Start a server"].replace("2>&1 &", "2>&1 & echo $! > server.pid\n", 1)
    outputs = {name: runner.run(script) for name, script in scripts.items() if name not in ("Gates", "Roll out")}
    # A second production server, which reads the same configuration.
    second = scripts["Start a server"].replace("server.", "second.")
    ports = {"TPUSERVE_SERVE_PORT": "SECOND_GRPC", "TPUSERVE_SERVE_REST_API_PORT": "SECOND_REST"}
    variables = {name: runner.environment[port] for name, port in ports.items()}
    runner.run(second, **variables, GRPC=f"localhost:{variables['TPUSERVE_SERVE_PORT']}")
    outputs |= {name: runner.run(scripts[name].replace("git config", "true")) for name in ("Gates", "Roll out")}
    assert (runner.folder / "reports/version").read_text() == "2\n"
    assert "digits: version 2 is live." in outputs["Roll out"]
    assert "2 of 2 replicas with the configuration" in outputs["Roll out"]
    assert 'version_labels { key: "stable" value: 2 }' in (runner.folder / "models.config").read_text()
    reports = {path.name for path in (runner.folder / "reports").iterdir()}
    for port in ("TPUSERVE_SERVE_REST_API_PORT", "SECOND_REST"):
        address = f"http://localhost:{runner.environment[port]}/v1/models/digits/labels/stable/metadata"
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert json.load(answer)["model_spec"]["version"] == "2"
    assert {"export.html", "load.html", "load.xml", "compare.html", "compare.xml", "rollout.html"} <= reports


def test_cloud_build_runs_the_same_commands() -> None:
    ours, theirs = workflow_scripts(), build_scripts()
    for step in ("Train", "Export and check"):
        assert commands(theirs[step]) == commands(ours[step])
    assert commands(theirs["Roll out"]) == commands(ours["Roll out"])[-1:] == ["deploy/ci/rollout.sh"]
    assert commands(theirs["Gates"])[:2] == commands(ours["Start a server"])
    assert workflow()["env"].keys() <= {line.partition("=")[0] for line in build()["options"]["env"]}


def commands(script: str) -> list[str]:
    """Return the commands of a script, one line each."""
    lines = script.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if not line.startswith(("#", "set "))]
