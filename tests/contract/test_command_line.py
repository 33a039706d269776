"""TensorFlow Serving's contract: invalid flags and files, and the command under TensorFlow Serving's name."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.free_ports import free_ports
from tpuserve_server.startup import command as entry

BIN = Path(sys.executable).parent


def _flags(*flags: str) -> list[str]:
    grpc_port, rest_port = free_ports(2)
    ports = [f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1"]
    return [*ports, *flags]


def _serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it refuses to start. A server that starts exceeds the timeout, which fails the test."""
    command = [str(BIN / "tensorflow_model_server"), *_flags(*flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@dataclass
class Refusal:
    """The result of a command, with the fields of a CompletedProcess."""

    returncode: int
    stderr: str


@pytest.fixture
def refuse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., Refusal]:
    """Return a function that runs the command in this process, for refusals before the server starts.

    pytest takes the log, so the command writes only errors of its flags to stderr.
    """

    def run(*flags: str) -> Refusal:
        monkeypatch.setattr(sys, "argv", ["tensorflow_model_server", *_flags(*flags)])
        with pytest.raises(SystemExit) as ended:
            entry.tensorflow_model_server()
        assert isinstance(ended.value.code, int)
        return Refusal(ended.value.code, capsys.readouterr().err + caplog.text)

    return run


def test_an_unknown_flag_names_the_nearest(refuse: Callable[..., Refusal]) -> None:
    done = refuse("--model_base_pth=/tmp")
    assert done.returncode != 0
    assert "--model_base_pth" in done.stderr
    assert "--model_base_path" in done.stderr


@pytest.mark.parametrize("command", ["tensorflow_model_server", "tpuserve-serve"])
def test_version(command: str) -> None:
    done = subprocess.run([str(BIN / command), "--version"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0
    assert "TensorFlow" in done.stdout


def test_nothing_to_serve(refuse: Callable[..., Refusal]) -> None:
    done = refuse()
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
def test_a_model_config_file_that_does_not_parse(
    refuse: Callable[..., Refusal], tmp_path: Path, text: str, where: str
) -> None:
    config = tmp_path / "models.config"
    config.write_text(text)
    done = refuse(f"--model_config_file={config}")
    assert done.returncode != 0
    assert f"Error parsing text-format tensorflow.serving.ModelServerConfig: {where}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_config_file_that_is_not_there(refuse: Callable[..., Refusal], tmp_path: Path) -> None:
    done = refuse(f"--model_config_file={tmp_path}/absent")
    assert done.returncode != 0
    assert "absent" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_config_with_a_relative_path(tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text('model_config_list { config { name: "b" base_path: "x/y" model_platform: "tensorflow" } }')
    done = _serve(f"--model_config_file={config}")
    assert done.returncode != 0
    assert "Expected model b to have an absolute path or URI; got base_path()=x/y" in done.stderr


def test_a_store_that_nobody_knows() -> None:
    done = _serve("--model_base_path=nosuch://bucket/m")
    assert done.returncode != 0
    assert "The server does not support paths of nosuch://" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("monitoring_config_file", "prometheus { }"),
        ("ssl_config_file", "server_key: 3"),
        ("batching_parameters_file", "max_batch_size { value: 'x' }"),
    ],
)
def test_other_files_that_do_not_parse(refuse: Callable[..., Refusal], tmp_path: Path, flag: str, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    done = refuse(f"--model_base_path={tmp_path}", "--enable_batching", f"--{flag}={path}")
    assert done.returncode != 0
    assert "1:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_session_config_file_that_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no_such_field: 1")
    done = _serve(f"--model_base_path={tmp_path}", f"--tensorflow_session_config_file={path}")
    assert done.returncode != 0
    assert "1:" in done.stderr
    assert "Traceback" not in done.stderr


def test_batching_parameters_need_batching(refuse: Callable[..., Refusal], tmp_path: Path) -> None:
    path = tmp_path / "batching"
    path.write_text("max_batch_size { value: 4 }")
    done = refuse(f"--model_base_path={tmp_path}", f"--batching_parameters_file={path}")
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
def test_batching_parameters_that_do_not_fit(
    refuse: Callable[..., Refusal], tmp_path: Path, parameters: str, message: str
) -> None:
    path = tmp_path / "batching"
    path.write_text(parameters)
    done = refuse(f"--model_base_path={tmp_path}", "--enable_batching", f"--batching_parameters_file={path}")
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("flag", ["--use_alts_credentials=true", "--flush_filesystem_caches=false"])
def test_a_flag_without_a_meaning_here_is_accepted_with_a_notice(
    refuse: Callable[..., Refusal], tmp_path: Path, flag: str
) -> None:
    done = refuse(flag, f"--model_config_file={tmp_path}/absent")
    assert flag.split("=")[0].removeprefix("--") in done.stderr
    assert "No such option" not in done.stderr
