"""Tests for real servers that TensorFlow Serving's configuration files and flags configure."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.support import forked_command
from tests.support.free_ports import free_ports
from tests.support.optional import needs
from tests.support.saved_models import save_half_plus_two

pytestmark = pytest.mark.xdist_group(__name__)

COMMAND = [sys.executable, "-c", "from tpuserve_server.startup.command import tensorflow_model_server as run; run()"]
START_TIMEOUT_S = 300.0


def as_text_proto(**fields: str | bool) -> str:
    """Encode strings as C string literals, which text protos share with JSON."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())


@dataclass
class Authority:
    """A certificate authority with a server, a client and the files that both need."""

    folder: Path

    def __post_init__(self) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        client = authority.issue_cert("client@example.org")
        self.ca = authority.cert_pem.bytes()
        self.client_key = client.private_key_pem.bytes()
        self.client_chain = client.cert_chain_pems[0].bytes()
        for name, pem in (("ca", self.ca), ("key", self.client_key), ("chain", self.client_chain)):
            (self.folder / f"{name}.pem").write_bytes(pem)
        self.ssl_config = self.folder / "ssl.config"
        self.ssl_config.write_text(
            as_text_proto(
                server_key=server.private_key_pem.bytes().decode(),
                server_cert=server.cert_chain_pems[0].bytes().decode(),
                custom_ca=self.ca.decode(),
                client_verify=True,
            )
        )

    def channel(self, address: str) -> grpc.Channel:
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.ca, self.client_key, self.client_chain))

    def curl(self, url: str, *arguments: str, known: bool = True) -> subprocess.CompletedProcess[str]:
        own = ["--cert", str(self.folder / "chain.pem"), "--key", str(self.folder / "key.pem")] if known else []
        return subprocess.run(
            ["curl", "--silent", "--max-time", "20", "--cacert", str(self.folder / "ca.pem"), *own, *arguments, url],
            capture_output=True, text=True,
        )  # fmt: skip


@dataclass
class Server:
    grpc: str
    rest: str
    authority: Authority
    log: Path


def wait_until_serving(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(), timeout=START_TIMEOUT_S, wait_for_ready=True
    )
    next(reply for reply in watch if reply.status == health_pb2.HealthCheckResponse.SERVING)
    watch.cancel()


def wait_until_available(channel: grpc.Channel, model: str, versions: int) -> None:
    """Wait until `versions` versions are available. The server reports ready when each model has one version."""
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = model
    deadline = time.monotonic() + START_TIMEOUT_S
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    while [v.state for v in models.GetModelStatus(request, timeout=30).model_version_status] != [available] * versions:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def running(log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([*COMMAND, *flags], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve two models from a file, with TLS, client certificates and TensorFlow Serving's metrics path."""
    folder = tmp_path_factory.mktemp("configured")
    authority = Authority(folder)
    for name in ("one", "two"):
        save_half_plus_two(folder / name / "1")
    shutil.copytree(folder / "two/1", folder / "two/2")
    models = folder / "models.config"
    models.write_text(
        f"""model_config_list {{
          config {{ name: "one" base_path: "{folder}/one" model_platform: "tensorflow" }}
          config {{
            name: "two" base_path: "{folder}/two" model_platform: "tensorflow"
            model_version_policy {{ specific {{ versions: 1 versions: 2 }} }}
          }}
        }}"""
    )
    monitoring = folder / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    grpc_port, rest_port = free_ports(2)
    flags = [
        "--bind_address=127.0.0.1", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        f"--model_config_file={models}", f"--ssl_config_file={authority.ssl_config}",
        f"--monitoring_config_file={monitoring}", "--file_system_poll_wait_seconds=0.1", "--grpc_max_threads=4",
        "--model_name=ignored", "--model_base_path=/nowhere", "--enable_serialization_as_tensor_content",
    ]  # fmt: skip
    with running(folder / "log", *flags), authority.channel(f"127.0.0.1:{grpc_port}") as channel:
        wait_until_serving(channel)
        wait_until_available(channel, "two", versions=2)
        yield Server(f"127.0.0.1:{grpc_port}", f"https://127.0.0.1:{rest_port}", authority, folder / "log")


@pytest.mark.parametrize(("model", "version"), [("one", 1), ("two", 1), ("two", 2)])
def test_every_configured_version_answers_the_official_stub_with_tensor_content(
    server: Server, model: str, version: int
) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.version.value = version
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([[2.0]], np.float32)))
    with server.authority.channel(server.grpc) as channel:
        response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=30)
    assert not response.outputs["y"].float_val
    assert response.outputs["y"].tensor_content == np.float32(3).tobytes()


@needs("curl")
def test_rest_answers_over_https(server: Server) -> None:
    answer = server.authority.curl(f"{server.rest}/v1/models/two:predict", "--data", '{"instances": [[2.0]]}')
    assert json.loads(answer.stdout) == {"predictions": [[3.0]]}


@needs("curl")
def test_without_a_certificate_nobody_is_served(server: Server) -> None:
    assert server.authority.curl(f"{server.rest}/healthz", known=False).returncode != 0
    with grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials(server.authority.ca)) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@needs("curl")
def test_metrics_are_where_tensorflow_serving_has_them(server: Server) -> None:
    assert "tpuserve_requests_total" in server.authority.curl(f"{server.rest}/monitoring/prometheus/metrics").stdout


def test_load_test_goes_through_tls_to_its_metrics_too(server: Server) -> None:
    folder = server.authority.folder
    own = [f"--{name}={folder / file}.pem" for name, file in (("ca", "ca"), ("cert", "chain"), ("key", "key"))]
    load = ["--users=2", "--duration=1s", "--warm-up=0", "--generator-limit=note", "--golden=record", "--json"]
    addresses = [f"--grpc=grpcs://{server.grpc}", f"--rest={server.rest}"]
    run = forked_command.run("tpuserve-loadtest", "one", *addresses, *own, *load, timeout_s=60)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert min(figures["requests"] for figures in report["protocols"].values()) > 10
    assert report["server"]["answers"]["OK"] > 20


def test_flags_without_meaning_here_left_one_line_each(server: Server) -> None:
    lines = [line for line in server.log.read_text().splitlines() if "has no effect" in line]
    [line] = lines
    assert line.startswith("tpuserve: --grpc_max_threads has no effect.")


@pytest.mark.parametrize(
    ("flag", "text", "line"),
    [
        (
            "--model_config_file",
            "model_config_list {\n  config { nam: 1 }\n}",
            "Error parsing text-format tensorflow.serving.ModelServerConfig: 2:12: Message type "
            '"tensorflow.serving.ModelConfig" has no field named "nam". Invalid protobuf file: ',
        ),
        (
            "--monitoring_config_file",
            "enable: true",
            "Error parsing text-format tensorflow.serving.MonitoringConfig: 1:1: Message type "
            '"tensorflow.serving.MonitoringConfig" has no field named "enable". Invalid protobuf file: ',
        ),
        (
            "--ssl_config_file",
            'server_key: "secret"\nserver_cert: 1',
            "Error parsing text-format tensorflow.serving.SSLConfig: 2:14: Expected string but found: (not shown). "
            "Invalid protobuf file: ",
        ),
        ("--ssl_config_file", 'server_key: "secret" server_cert: "c"', "server_cert is not a PEM certificate"),
    ],
)
def test_a_wrong_file_ends_the_start_with_one_line(flag: str, text: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.config"
    file.write_text(text)
    file.chmod(0o600)  # The server warns about a key that others can read.
    ports = [f"--port={free_ports(1)[0]}", "--rest_api_port=0", "--bind_address=127.0.0.1"]
    ended = subprocess.run(
        [*COMMAND, "--model_base_path=/nowhere", *ports, f"{flag}={file}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    [message] = [message for message in ended.stderr.splitlines() if "Host " not in message]
    assert line in message
    assert str(file) in message
    assert "secret" not in message
