"""Tests that the image builds and serves, without a container engine.

They run the build stage in a separate directory, with this machine's Python instead of the base image. Then they start
the entry point there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.deploy.dockerfile import ROOT, Instruction, arguments, environment, instruction, read_dockerfile
from tests.support.free_ports import free_ports
from tests.support.optional import cannot_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("image")]

OFFLINE = re.compile(r"connection|resolve host|name resolution|network|dns error|timed out", re.IGNORECASE)


def plain_environment() -> dict[str, str]:
    """Return this process' environment without variables of the virtual environment or the coverage run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"}


def carry_out(step: Instruction, image: Path, build: Path) -> None:
    """Run one COPY or RUN with ``image`` as the root of /opt and ``build`` as the working directory."""
    if step.name == "COPY":
        copy(step.words[:-1], build / step.words[-1])
    elif step.name == "RUN":
        ran = run_step(step.text, image, build)
        assert ran.returncode == 0, f"{step.text}\n{ran.stdout}{ran.stderr}"


def run_step(command: str, image: Path, build: Path, **build_args: str) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        ["/bin/sh", "-ec", command.replace("/opt/", f"{image}/opt/")],
        cwd=build,
        env=plain_environment() | arguments(read_dockerfile().stages[0]) | build_args,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0 and OFFLINE.search(ran.stderr):
        cannot_run(f"needs the package index: {ran.stderr.strip().splitlines()[-1]}")
    return ran


def copy(sources: list[str], destination: Path) -> None:
    """Implement COPY: copy a directory's contents to the destination, and files into it."""
    for source in (ROOT / name for name in sources):
        if source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)


@dataclass(frozen=True)
class Built:
    """The results of the build stage: the root of the image's /opt, and the working directory."""

    image: Path
    build: Path


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Build the image's /opt and remove it at the end, because TensorFlow is large."""
    with tempfile.TemporaryDirectory() as folder:
        made = Built(Path(folder, "image"), Path(folder, "build"))
        for each in (made.image / "opt", made.build):
            each.mkdir(parents=True)
        for step in read_dockerfile().stages[0]:
            carry_out(step, made.image, made.build)
        yield made


@pytest.fixture(scope="module")
def bin_folder(built: Built) -> Path:
    """Return the ``bin`` of /opt/tpuserve."""
    return built.image / "opt/tpuserve/bin"


def install_for(device: str, built: Built) -> subprocess.CompletedProcess[str]:
    """Dry-run the step that installs the locks, because a device's client takes up to several GB."""
    (install,) = (each.text for each in read_dockerfile().stages[0] if "uv pip sync" in each.text)
    beside = install.replace("/opt/tpuserve", "/opt/of_a_device").replace(" pip sync ", " pip sync --dry-run ")
    return run_step(beside, built.image, built.build, DEVICE=device)


@pytest.mark.parametrize(("device", "client"), [("tpu", "libtpu"), ("cuda", "jax-cuda13-pjrt"), ("none", "tensorflow")])
def test_a_device_s_client_goes_with_what_the_image_installs(device: str, client: str, built: Built) -> None:
    listed = install_for(device, built)
    assert listed.returncode == 0, listed.stderr
    named = {line.split()[1].partition("==")[0] for line in listed.stderr.splitlines() if line.startswith(" + ")}
    assert {"tensorflow", "fastapi", client} <= named
    assert ("jax" in named) is (device != "none")


def test_a_device_that_nobody_knows_ends_the_build(built: Built) -> None:
    refused = install_for("gpu", built)
    assert (refused.returncode, refused.stderr) == (2, "DEVICE is tpu, cuda or none, not 'gpu'\n")


def image_environment(bin_folder: Path, scratch: Path) -> dict[str, str]:
    """Return the image's ENV, with ``scratch`` instead of / for its mounts, /models and /tmp."""
    variables = environment(read_dockerfile().final)
    moved = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "HOME": f"{scratch}{variables['HOME']}",
        "MODEL_BASE_PATH": f"{scratch}{variables['MODEL_BASE_PATH']}",
        "TMPDIR": f"{scratch}/tmp",
    }
    return variables | moved


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Create a directory with a short path, because a socket's path is limited to 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("models", "tmp"):
            Path(folder, name).mkdir()
        yield Path(folder)


def run(command: str, *arguments: str, bin_folder: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_folder / command, *arguments],
        env=image_environment(bin_folder, scratch),
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["tpuserve-serve", "tpuserve", "tensorflow_model_server"])
def test_command_runs_from_what_the_image_installs(command: str, bin_folder: Path, scratch: Path) -> None:
    helped = run(command, "--help", bin_folder=bin_folder, scratch=scratch)
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.startswith("Usage: ")


def test_image_holds_no_installer_and_nothing_of_the_source_tree(bin_folder: Path, scratch: Path) -> None:
    held = {path.name for path in bin_folder.iterdir()}
    assert not held & {"pip", "uv"}
    where = "import tpuserve_server; print(tpuserve_server.__file__)"
    listed = run("python", "-c", where, bin_folder=bin_folder, scratch=scratch)
    assert listed.stdout.startswith(str(bin_folder.parent)), listed


HALF_PLUS_TWO = """
import sys, tensorflow as tf
module = tf.Module()
module.serve = tf.function(lambda x: {"y": x / 2 + 2}, input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
tf.saved_model.save(module, sys.argv[1], signatures={"serving_default": module.serve})
"""


def read_until(stream: IO[str], line: str) -> str:
    """Read up to ``line``, or to the end of the stream."""
    read = []
    for each in stream:
        read.append(each)
        if each.strip() == line:
            break
    return "".join(read)


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_entry_point_serves_a_model_drains_and_writes_to_tmp_alone(bin_folder: Path, scratch: Path) -> None:
    saved = run("python", "-c", HALF_PLUS_TWO, f"{scratch}/models/model/1", bin_folder=bin_folder, scratch=scratch)
    assert saved.returncode == 0, saved.stderr
    kept = (bin_folder.parent, scratch / "models")
    before = [files_below(folder) for folder in kept]
    grpc_port, rest_port = free_ports(2)
    (entry_point,) = instruction(read_dockerfile().final, "ENTRYPOINT").exec_form
    server = subprocess.Popen(
        [bin_folder / entry_point, f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1"],
        env=image_environment(bin_folder, scratch),
        cwd=scratch / "tmp",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        started = read_until(server.stdout, "tpuserve is ready")
        assert server.poll() is None, started
        for address in (f"localhost:{grpc_port}", f"http://localhost:{rest_port}"):
            asked = predict([2.0, 4.0], address, bin_folder=bin_folder, scratch=scratch)
            assert asked == {"y": [3.0, 4.0]}
        server.terminate()
        rest, _ = server.communicate()
        assert server.returncode == 0, started + rest
    finally:
        server.kill()
        server.wait()
    assert [files_below(folder) for folder in kept] == before


def predict(values: list[float], address: str, *, bin_folder: Path, scratch: Path) -> object:
    """Predict with the image's own client and return the decoded JSON outputs."""
    (scratch / "tmp/request.json").write_text(json.dumps({"inputs": {"x": values}}))
    arguments = ("predict", "model", "--input", f"{scratch}/tmp/request.json", "--address", address, "--json")
    asked = run("tpuserve", *arguments, bin_folder=bin_folder, scratch=scratch)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)["outputs"]
