"""Tests of each distribution and extra, installed from wheels into an empty environment: programs, imports, one action.

The exporter's environment exports a model, the server's serves it, and the client's and the load tests' call it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running_server import RunningServer, run_in_environment
from tests.installs.catalogue import INSTALLATIONS, Installation
from tests.installs.environments import Environments
from tests.support.free_ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("installs")]

LIGHT = [installation for installation in INSTALLATIONS if not installation.heavy]
HEAVY = {
    "tpuserve-server[tpu]": {"libtpu", "jax", "flatbuffers"},
    "tpuserve-server[cuda]": {"jax-cuda13-pjrt", "jax", "flatbuffers"},
    "tpuserve-exporter[tpu]": {"libtpu", "jax", "tensorflow"},
    "tpuserve-exporter[torch]": {"torch", "torchax", "jax", "tensorflow"},
    "tpuserve-exporter[huggingface]": {"torch", "torchax", "jax", "tensorflow", "transformers"},
}

# Prints the packages that modules of the first argument need and that are missing. gevent replaces modules first, as in
# a load test.
IMPORT_ALL = """
import importlib.util
if importlib.util.find_spec("gevent"):
    from gevent import monkey
    monkey.patch_all()
import json, pkgutil, sys
missing = set()
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
print(json.dumps(sorted(missing)))
"""

SAVE_MODEL = """
import keras, numpy as np
keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(2, kernel_initializer="ones")]).save("model.keras")
"""

PREDICT = """
import json, sys
import numpy as np
from tpuserve_client import Client
with Client(sys.argv[1]) as client:
    prediction = client.predict("m", np.ones((1, 4), np.float32))
    print(json.dumps([array.tolist() for array in prediction.values()]))
"""


@pytest.fixture(scope="module")
def models(environments: Environments) -> Path:
    """Export a Keras model with the exporter, and return its base path."""
    exporter = environments.make("tpuserve-exporter")
    exporter.run("python", "-c", SAVE_MODEL)
    exporter.run("tpuserve-export", "model.keras", "models/m", "--batch-sizes", "1,2")
    return exporter.folder / "models" / "m"


@pytest.fixture(scope="module")
def server(environments: Environments, models: Path) -> Iterator[RunningServer]:
    """Serve the model with the server."""
    serving = environments.make("tpuserve-server[tensorflow]")
    ports = free_ports(2)
    flags = (f"--rest_api_port={ports[1]}", "--model_name=m", f"--model_base_path={models}")
    log, executable = serving.folder / "log", serving.bin / "tpuserve-serve"
    with run_in_environment(log, ports, {}, *flags, model="m", executable=executable) as running:
        yield running


@pytest.mark.parametrize("installation", LIGHT, ids=lambda installation: installation.requirement)
def test_its_programs_start_and_its_module_can_be_imported(
    installation: Installation, environments: Environments
) -> None:
    environment = environments.make(installation.requirement)
    environment.run("python", "-c", installation.statement)
    # An extra adds no program.
    for script in () if installation.extra else environment.scripts:
        assert environment.run(script, "--help").stdout.startswith("Usage: "), script


@pytest.mark.parametrize(
    ("distribution", "optional"),
    [
        ("tpuserve-formats", {"cryptography", "pydantic", "google_crc32c"}),
        ("tpuserve-client", {"PIL"}),
        ("tpuserve-command", set()),
        (
            "tpuserve-server",
            {"tensorflow", "jax", "ai_edge_litert", "flatbuffers", "fsspec", "gcsfs", "openvino", "ray", "s3fs"},
        ),
        ("tpuserve-loadtests", {"opentelemetry", "requests"}),
    ],
)
def test_its_modules_import_only_what_it_and_its_extras_declare(
    distribution: str, optional: set[str], environments: Environments
) -> None:
    environment = environments.make(distribution)
    # These modules generate other modules, from packages that only a checkout has.
    tools = {"tensorflow", "tensorflow_serving", "grpc_tools"} if distribution == "tpuserve-formats" else set()
    printed = environment.run("python", "-c", IMPORT_ALL, distribution.replace("-", "_")).stdout
    assert set(json.loads(printed.splitlines()[-1])) <= optional | tools


@pytest.mark.parametrize("requirement", HEAVY)
def test_a_large_extra_resolves(requirement: str, environments: Environments) -> None:
    assert environments.plan(requirement) >= HEAVY[requirement]


def test_every_large_extra_is_planned() -> None:
    assert HEAVY.keys() == {one.requirement for one in INSTALLATIONS if one.heavy}


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_client_predicts(protocol: str, server: RunningServer, environments: Environments) -> None:
    address = server.grpc if protocol == "grpc" else server.rest
    client = environments.make("tpuserve-client")
    assert json.loads(client.run("python", "-c", PREDICT, address).stdout) == [[[4.0, 4.0]]]
    assert "1\tAVAILABLE" in client.run("tpuserve", "status", "m", "--address", address).stdout


def test_the_load_tests_run(server: RunningServer, environments: Environments) -> None:
    load_tests = environments.make("tpuserve-loadtests")
    options = ("--grpc", server.grpc, "--rest", server.rest, "--duration", "1s", "--generator-limit", "note")
    assert "All requests succeeded" in load_tests.run("tpuserve", "loadtest", "m", *options).stdout


def test_everything_brings_every_command(server: RunningServer, environments: Environments) -> None:
    everything = environments.make("tpuserve")
    assert "1\tAVAILABLE" in everything.run("tpuserve", "status", "m", "--address", server.grpc).stdout
    for command in ("export", "inspect", "check", "serve", "loadtest", "rollout"):
        assert everything.run("tpuserve", command, "--help").stdout.startswith(f"Usage: tpuserve {command}")


def test_a_missing_command_is_named_with_its_installation(environments: Environments) -> None:
    client = environments.make("tpuserve-client")
    missing = client.run("tpuserve", "serve", code=127, PATH="")
    assert "pip install 'tpuserve-server[tensorflow]'" in missing.stderr


@pytest.mark.parametrize(
    ("requirement", "commands"),
    [
        ("tpuserve-server[tensorflow]", {"serve", "health", "key"}),
        ("tpuserve-exporter", {"export", "inspect", "check", "sign", "keygen", "deploy"}),
        ("tpuserve-client", {"predict", "status", "protos"}),
        ("tpuserve-loadtests", {"loadtest", "rollout", "predict", "status", "protos"}),
    ],
)
def test_each_distribution_brings_the_command(requirement: str, commands: set[str], environments: Environments) -> None:
    environment = environments.make(requirement)
    installed, _, _ = environment.run("tpuserve", "--help", PATH="").stdout.partition("Not installed:")
    assert set(re.findall(r"^  (\w+)  ", installed.partition("Commands:")[2], re.MULTILINE)) == commands
    for command in commands:
        assert environment.run("tpuserve", command, "-h").stdout.startswith(f"Usage: tpuserve {command}")
