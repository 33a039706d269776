"""TensorFlow Serving's contract: flags and files that are wrong, and the command under its own name."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.free_ports import free_ports

pytestmark = pytest.mark.timeout(120)

BIN = Path(sys.executable).parent


def _serve(
    *flags: str, command: str = "tensorflow_model_server", host: str = "python"
) -> subprocess.CompletedProcess[str]:
    """Run until it refuses; a server that starts after all is ended by the timeout, which fails the test."""
    grpc_port, rest_port = free_ports(2)
    ports = [f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1"]
    base = [*ports, f"--host_backend={host}"]
    return subprocess.run([str(BIN / command), *base, *flags], capture_output=True, text=True, timeout=100)


@pytest.fixture(params=["envoy", "python"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_unknown_flag_names_the_nearest(host: str) -> None:
    done = _serve("--model_base_pth=/tmp", host=host)
    assert done.returncode != 0
    assert "--model_base_pth" in done.stderr
    assert "--model_base_path" in done.stderr


@pytest.mark.parametrize("command", ["tensorflow_model_server", "tpuserve-serve"])
def test_version(command: str) -> None:
    done = subprocess.run([str(BIN / command), "--version"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert "TensorFlow" in done.stdout


def test_nothing_to_serve(host: str) -> None:
    done = _serve(host=host)
    assert done.returncode != 0
    assert "--model_base_path" in done.stderr


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('model_config_list { config { nam: "m" } }', "1:30"),
        ('model_config_list {\n  config {\n    name: "m"\n    base_path: 3\n  }\n}', "4:16"),
        ("model_config_list {", "1:"),
        ("custom { }", "1:1"),
    ],
    ids=["unknown field", "wrong type", "cut short", "unknown message"],
)
def test_a_model_config_file_that_does_not_parse(tmp_path: Path, host: str, text: str, where: str) -> None:
    config = tmp_path / "models.config"
    config.write_text(text)
    done = _serve(f"--model_config_file={config}", host=host)
    assert done.returncode != 0
    assert f"Error parsing text-format tensorflow.serving.ModelServerConfig: {where}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_config_file_that_is_not_there(tmp_path: Path, host: str) -> None:
    done = _serve(f"--model_config_file={tmp_path}/absent", host=host)
    assert done.returncode != 0
    assert "absent" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_config_with_a_relative_path(tmp_path: Path, host: str) -> None:
    config = tmp_path / "models.config"
    config.write_text('model_config_list { config { name: "b" base_path: "x/y" model_platform: "tensorflow" } }')
    done = _serve(f"--model_config_file={config}", host=host)
    assert done.returncode != 0
    assert "Expected model b to have an absolute path or URI; got base_path()=x/y" in done.stderr


def test_a_store_that_nobody_knows(host: str) -> None:
    done = _serve("--model_base_path=nosuch://bucket/m", host=host)
    assert done.returncode != 0
    assert "There is no storage for base paths of nosuch://" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("monitoring_config_file", "prometheus { }"),
        ("ssl_config_file", "server_key: 3"),
        ("batching_parameters_file", "max_batch_size { value: 'x' }"),
        ("tensorflow_session_config_file", "no_such_field: 1"),
    ],
)
def test_other_files_that_do_not_parse(tmp_path: Path, flag: str, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    done = _serve(f"--model_base_path={tmp_path}", "--enable_batching", f"--{flag}={path}")
    assert done.returncode != 0
    assert "1:" in done.stderr
    assert "Traceback" not in done.stderr


def test_batching_parameters_need_batching(tmp_path: Path) -> None:
    path = tmp_path / "batching"
    path.write_text("max_batch_size { value: 4 }")
    done = _serve(f"--model_base_path={tmp_path}", f"--batching_parameters_file={path}")
    assert done.returncode != 0
    assert "--enable_batching" in done.stderr


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("allowed_batch_sizes: 2 allowed_batch_sizes: 8 max_batch_size { value: 4 }", "last entry was 8; expected 4"),
        ("num_batch_threads { value: 0 }", "num_batch_threads must be positive"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros must be non-negative"),
        ("max_enqueued_batches { value: -1 }", "max_enqueued_batches must be positive"),
    ],
)
def test_batching_parameters_that_do_not_fit(tmp_path: Path, parameters: str, message: str) -> None:
    path = tmp_path / "batching"
    path.write_text(parameters)
    done = _serve(f"--model_base_path={tmp_path}", "--enable_batching", f"--batching_parameters_file={path}")
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("flag", ["--use_alts_credentials=true", "--flush_filesystem_caches=false"])
def test_a_flag_without_a_meaning_here_is_accepted_with_a_notice(tmp_path: Path, flag: str) -> None:
    done = _serve(flag, f"--model_config_file={tmp_path}/absent")
    assert flag.split("=")[0].removeprefix("--") in done.stderr
    assert "No such option" not in done.stderr


@pytest.mark.slow
def test_an_initial_load_that_fails(tmp_path: Path, host: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "saved_model.pb").write_bytes(b"no model")
    flags = (f"--model_base_path={tmp_path}/m", "--model_name=m", "--max_num_load_retries=0")
    done = _serve(*flags, "--file_system_poll_wait_seconds=0.1", host=host)
    assert done.returncode != 0
    assert "1 servable(s) did not become available: {" in done.stderr
    assert "{name: m version: 1} due to error: " in done.stderr
