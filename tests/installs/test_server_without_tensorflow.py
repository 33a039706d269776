"""Tests of the server without TensorFlow: it serves device programs, and names what a SavedModel needs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_in_environment
from tests.installs.environments import Environment, Environments
from tests.support.device_programs import double_and_add, write_programs
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_half_plus_two
from tests.support.tflite_models import half_plus_two, save
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("installs")]

NEEDS = "the version's SavedModel needs TensorFlow, which is not installed: pip install 'tpuserve-server[tensorflow]' "
NO_PROGRAMS = f"{NEEDS}(the version has no device programs)"
RUNTIMES = re.compile(r"Installed runtimes:\n(?:  .*\n)+")
AGAIN = "(permanent: tried again when its files change)"
BROKEN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}


@dataclass(frozen=True)
class Served:
    """A server of `programs`, with device programs, and `saved`, with a SavedModel."""

    environment: Environment
    running: RunningServer
    config: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.running.rest}{path}", trust_env=False)


@pytest.fixture(scope="module")
def served(environments: Environments) -> Iterator[Served]:
    environment = environments.make("tpuserve-server[pjrt]")
    models = environment.folder / "models"
    write_programs(models / "programs" / "1", double_and_add())
    save_half_plus_two(models / "saved" / "3")
    save_half_plus_two(models / "both" / "1")
    write_programs(models / "both" / "1", double_and_add())
    config = models / "models.config"
    listed = (
        f'config {{ name: "{name}" base_path: "{models / name}" model_platform: "tensorflow" }}'
        for name in ("programs", "saved", "both")
    )
    config.write_text(f"model_config_list {{ {' '.join(listed)} }}")
    ports = free_ports(2)
    flags = (
        f"--rest_api_port={ports[1]}", f"--model_config_file={config}", "--device=cpu", "--max_num_load_retries=0",
        "--enable_profiler",
    )  # fmt: skip
    log, executable = environment.folder / "log", environment.bin / "tpuserve-serve"
    with run_in_environment(log, ports, {}, *flags, model="programs", executable=executable) as running:
        with Client(running.grpc) as client:
            client.wait_until_ready(60, "both")
        yield Served(environment, running, config)


@pytest.mark.parametrize("model", ["programs", "both"])
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_device_programs_are_served(model: str, protocol: str, served: Served) -> None:
    with Client(served.running.grpc if protocol == "grpc" else served.running.rest) as client:
        assert client.predict(model, {"x": np.ones((3, 2), np.float32)})["double"].tolist() == [[2, 2]] * 3


def test_the_status_of_a_saved_model_has_the_reason_and_the_command(served: Served) -> None:
    (version,) = served.get("/v1/models/saved").json()["model_version_status"]
    assert (version["version"], version["state"]) == ("3", "END")
    assert version["status"] == {"error_code": "FAILED_PRECONDITION", "error_message": f"{NO_PROGRAMS} {AGAIN}"}
    # The console shows the errors of this document.
    assert NO_PROGRAMS in served.get("/debug/status").text
    assert served.get("/console").status_code == 200
    assert f"Loading {{name: saved version: 3}} failed: {NO_PROGRAMS}" in served.running.log.read_text()


def test_no_route_needs_tensorflow(served: Served) -> None:
    paths = served.get("/openapi.json").json()["paths"]
    assert {"/v1/models/{model}", "/metrics"} <= paths.keys()
    for path, methods in paths.items():
        filled = re.sub(r"\{model\w*\}", "programs", re.sub(r"\{\w*version\w*\}", "1", path))
        for method in methods if not path.endswith("/unload") else ():
            answer = httpx.request(method, f"{served.running.rest}{filled}", trust_env=False)
            assert answer.status_code != 500, f"{method} {filled}: {answer.text}"


def test_no_method_needs_tensorflow(served: Served) -> None:
    with grpc.insecure_channel(served.running.grpc) as channel:
        reflection = ProtoReflectionDescriptorDatabase(channel)
        names = [name for name in reflection.get_services() if "reflection" not in name]
        assert "tensorflow.serving.PredictionService" in names
        for name in names:
            file = reflection.FindFileContainingSymbol(name)
            (service,) = (each for each in file.service if f"{file.package}.{each.name}" == name)
            for method in service.method:
                if not method.server_streaming:
                    assert call(channel, f"/{name}/{method.name}") not in BROKEN, f"{name}/{method.name}"


def call(channel: grpc.Channel, path: str) -> grpc.StatusCode:
    """Call a method with an empty message, and return the code."""
    try:
        channel.unary_unary(path, bytes, bytes)(b"", timeout=60)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_the_help_of_every_flag_is_the_same_as_with_tensorflow(served: Served) -> None:
    helped = served.environment.run("tpuserve-serve", "--help=all").stdout
    with_tensorflow = served.environment.run(str(EXECUTABLE), "--help=all").stdout
    assert RUNTIMES.sub("", helped) == RUNTIMES.sub("", with_tensorflow)
    assert "  TensorFlow  not installed: pip install 'tpuserve-server[tensorflow]'\n" in helped
    assert re.search(r"^  JAX         \S+, for device programs$", helped, re.MULTILINE)
    assert "TensorFlow Library: not installed\n" in served.environment.run("tpuserve-serve", "--version").stdout


def test_the_check_of_a_configuration_finds_the_version(served: Served) -> None:
    checked = served.environment.run(
        "tpuserve-serve", "--check_config", "--device=cpu", f"--model_config_file={served.config}", code=2
    )
    lines = checked.stdout.splitlines()
    assert f"error    model saved version 3: {NEEDS.strip()}" in lines
    assert lines[-1] == "1 error, 0 warnings"


def test_without_a_device_the_error_names_both_remedies(served: Served) -> None:
    ports = free_ports(2)
    flags = (
        f"--port={ports[0]}", f"--rest_api_port={ports[1]}", "--bind_address=127.0.0.1",
        f"--model_base_path={served.config.parent / 'both'}", "--max_num_load_retries=0", "--ports_wait_for_models",
    )  # fmt: skip
    ended = served.environment.run("tpuserve-serve", *flags, code=1)
    reason = "(PJRT found no TPU or GPU; --device=cpu runs the device programs on the CPU)"
    assert f"{NEEDS}{reason}" in ended.stdout + ended.stderr


def test_tensorflow_lite_models_are_served(environments: Environments) -> None:
    environment = environments.make("tpuserve-server[tflite]")
    save(environment.folder / "m" / "1", half_plus_two())
    ports = free_ports(2)
    flags = (f"--rest_api_port={ports[1]}", "--model_name=m", f"--model_base_path={environment.folder / 'm'}")
    log, executable = environment.folder / "log", environment.bin / "tpuserve-serve"
    with (
        run_in_environment(
            log, ports, {}, *flags, "--prefer_tflite_model", model="m", executable=executable
        ) as running,
        Client(running.grpc) as client,
    ):
        (answer,) = client.predict("m", np.array([[2.0], [4.0]], np.float32)).values()
        assert answer.tolist() == [[3.0], [4.0]]
