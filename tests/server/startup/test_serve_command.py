import importlib
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.deploy.dockerfile import ROOT
from tests.support.upstream_flags import UPSTREAM_FLAGS
from tpuserve_server.startup.command import serve
from tpuserve_server.startup.flag_help import COMMON_FLAGS
from tpuserve_server.startup.settings import flags


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"MODEL_BASE_PATH": None, **environment}).invoke(serve, arguments, prog_name="tpuserve serve")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model to serve. Set --model_base_path=DIRECTORY"),
        (
            ("--model_base_path=/m", "--prot=1"),
            "No such option '--prot'. (Did you mean one of: '--port', '--profile'?)",
        ),
        (
            ("--model_base_path=/m", "--port=7", "--rest_api_port=7"),
            "port and rest_api_port are both 7; they must differ",
        ),
        (("--model_base_path=/m", "--port=70000"), "--port: Input should be less than or equal to 65535"),
        (
            ("--model_base_path=/m", "--allowed_batch_sizes=1,x"),
            "expected a list of whole numbers such as 1,8,32, got '1,x'",
        ),
        (("--model_base_path=/m", "--enable_batching=perhaps"), "'perhaps' is not a valid boolean"),
        (("--model_base_path=/m", "--max_num_load_retrys=1"), "Did you mean one of: '--max_num_load_retries'"),
        (("--model_base_path=/m", "--grpc_max_threads=many"), "'many' is not a valid integer"),
        (("--use_alts_credentials",), "--use_alts_credentials is not supported. Use --ssl_config_file."),
        (("--model_base_path=/m", "--access_log=some"), "'some' is not one of 'off', 'errors', 'all'"),
    ],
)
def test_wrong_flags_say_what_to_do_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TPUSERVE_SERVE_PORT", "70000", "--port (TPUSERVE_SERVE_PORT): Input should be less than or equal to 65535"),
        ("TPUSERVE_LOG_LEVEL", "loud", "TPUSERVE_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
        ("AIP_HTTP_PORT", "70000", "--rest_api_port (AIP_HTTP_PORT): Input should be less than or equal to 65535"),
        ("AIP_HTTP_PORT", "-1", "--rest_api_port (AIP_HTTP_PORT): Input should be greater than or equal to 0"),
        ("AIP_HTTP_PORT", "http", "Invalid value for '--rest_api_port' (AIP_HTTP_PORT): 'http' is not a valid integer"),
        ("AIP_HEALTH_ROUTE", "ping", "vertex_health_route (AIP_HEALTH_ROUTE) must be an absolute path"),
        ("AIP_HEALTH_ROUTE", "/healthz", "vertex_health_route (AIP_HEALTH_ROUTE): /healthz has another meaning"),
        ("AIP_PREDICT_ROUTE", "http://h/p", "vertex_predict_route (AIP_PREDICT_ROUTE) must be an absolute path"),
        ("AIP_PREDICT_ROUTE", "/metrics", "vertex_predict_route (AIP_PREDICT_ROUTE): /metrics has another meaning"),
        (
            "AIP_PREDICT_ROUTE",
            "/v1/models/n:predict",
            "vertex_predict_route (AIP_PREDICT_ROUTE): /v1/models/n:predict has another meaning in this server; the "
            "path of predictions is /v1/models/default:predict",
        ),
        ("AIP_STORAGE_URI", "models/m", "model_artifact_uri (AIP_STORAGE_URI) must be an absolute path or a URI"),
    ],
)
def test_a_variable_is_checked_like_its_flag_and_named(
    variable: str, value: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = invoke("--model_base_path=/m", **{variable: value})
    assert result.exit_code != 0
    assert message in result.output + caplog.text
    assert "Traceback" not in result.output


def test_a_flag_wins_over_a_variable_of_the_platform() -> None:
    result = invoke("--model_base_path=/m", "--rest_api_port=70000", AIP_HTTP_PORT="http")
    assert "--rest_api_port: Input should be less than or equal to 65535" in result.output


def test_a_route_of_the_platform_needs_the_rest_port() -> None:
    result = invoke("--model_base_path=/m", AIP_HTTP_PORT="0", AIP_PREDICT_ROUTE="/predict")
    assert "vertex_predict_route (AIP_PREDICT_ROUTE) needs the REST port, but rest_api_port (AIP_HTTP_PORT) is 0" in (
        result.output
    )


def test_an_unknown_scheme_of_the_platforms_storage_is_refused_by_name() -> None:
    result = invoke("--check_config", AIP_STORAGE_URI="nosuch://bucket/m")
    assert result.exit_code == 2
    assert "model_artifact_uri (AIP_STORAGE_URI): The server does not support paths of nosuch://" in result.output


def test_the_platforms_storage_replaces_the_images_folder_and_no_explicit_one(tmp_path: Path) -> None:
    for name in ("artifact", "models/1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "saved_model.pb").write_bytes(b"")
    artifact, folder = str(tmp_path / "artifact"), tmp_path / "models"
    shown = invoke("--check_config", AIP_STORAGE_URI=artifact, MODEL_BASE_PATH=str(tmp_path / "other")).output
    assert f"base path {artifact}; the server would serve version 1" in shown
    shown = invoke("--check_config", f"--model_base_path={folder}", AIP_STORAGE_URI=artifact).output
    assert f"base path {folder}; the server would serve version 1" in shown
    assert "no model to serve" in invoke("--check_config", AIP_STORAGE_URI="").output


def test_a_predict_route_needs_one_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = 'config {{ name: "{0}" base_path: "/{0}" model_platform: "tensorflow" }}'
    file = tmp_path / "models.config"
    file.write_text(f"model_config_list {{ {model.format('a')} {model.format('b')} }}")
    result = invoke(f"--model_config_file={file}", AIP_PREDICT_ROUTE="/predict")
    assert result.exit_code == 1
    assert (
        "vertex_predict_route (AIP_PREDICT_ROUTE) serves one model, and the configuration has 2. Set --model_name to "
        "one of them"
    ) in caplog.text


def test_the_images_environment_names_the_folder_of_models(tmp_path: Path) -> None:
    # With both ports off, the command fails after it found the path and before it serves.
    result = invoke("--port=0", "--rest_api_port=0", MODEL_NAME="digits", MODEL_BASE_PATH=str(tmp_path))
    assert result.exit_code == 2
    assert "no address to listen on" in result.output


def test_help_shows_examples_and_exit_codes() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert "MODEL_NAME=digits MODEL_BASE_PATH=/models tpuserve serve" in result.output
    assert "0    the server drained after SIGTERM" in result.output


def flags_in(help_text: str) -> list[str]:
    return re.findall(r"^  (?:-h, )?--(\w+)", help_text, re.MULTILINE)


def test_help_shows_the_common_flags_by_section_and_the_way_to_the_others() -> None:
    output = invoke("--help").output
    assert set(flags_in(output)) == {*COMMON_FLAGS.split(), "check_config", "version", "help"}
    assert flags_in(output)[:2] == ["model_name", "model_base_path"]
    titles = re.findall(r"^(\w[\w ]*):$", output, re.MULTILINE)
    assert titles[:4] == ["Models", "Listening", "Batching", "Devices"]
    assert "--help=all" in output
    # Two screens, with examples and exit codes.
    assert len(output.splitlines()) < 115


def test_help_of_a_group_shows_all_of_its_flags_and_nothing_else() -> None:
    output = invoke("--help=batching").output
    assert flags_in(output) == [flag.name for flag in flags() if flag.setting.section == "Batching"]
    assert "Examples" not in output


def test_help_marks_the_flag_that_is_refused() -> None:
    assert re.search(r"--use_alts_credentials BOOL\s+Refused. Use", invoke("--help=tensorflow-serving").output)


def test_help_of_all_groups_shows_every_flag_once() -> None:
    listed = flags_in(invoke("--help=all").output)
    assert len(listed) == len(set(listed))
    assert set(listed) == {option.name for option in serve.params} | {"help"}


def test_help_of_an_unknown_group_lists_the_groups() -> None:
    result = invoke("--help=gpu")
    assert result.exit_code == 2
    assert "'gpu' is not one of 'common', 'models', 'listening', 'batching'" in result.output


def test_version_is_this_servers_and_tensorflows() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output.startswith("tpuserve serve, version ")
    assert f"TensorFlow Library: {version('tensorflow')}" in result.output


def test_help_reports_which_runtimes_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"  TensorFlow  {version('tensorflow')}, for SavedModels\n" in invoke("--help").output
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    missing = "  TensorFlow  not installed: pip install 'tpuserve-server[tensorflow]'\n"
    assert missing in invoke("--help").output


@pytest.mark.parametrize(
    ("flag", "notice"),
    [
        ("--grpc_max_threads=8", "--grpc_max_threads has no effect. One event loop handles"),
        ("--enable_grpc_healthcheck_service=false", "--enable_grpc_healthcheck_service has no effect."),
        ("--platform_config_file=/f", "Use --batching_parameters_file"),
    ],
)
def test_flag_without_meaning_here_is_taken_with_one_line(
    flag: str, notice: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Without a model, the command fails after it read the flags.
    assert invoke(flag).exit_code == 2
    [(logger, _, line)] = caplog.record_tuples
    assert logger == "tpuserve"
    assert notice in line


@pytest.mark.parametrize("flag", ["--enable_grpc_healthcheck_service", "--use_alts_credentials=false"])
def test_flag_that_asks_for_what_is_so_anyway_gets_no_line(flag: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "no model to serve" in invoke(flag).output
    assert caplog.records == []


def test_tensorflow_model_server_is_a_command_with_rest_off_as_upstream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = tomllib.loads((ROOT / "server/pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["tensorflow_model_server"].partition(":")
    monkeypatch.setattr(sys, "argv", ["tensorflow_model_server", "--port=0", "--model_base_path=/m"])
    with pytest.raises(SystemExit) as ended:
        getattr(importlib.import_module(module), name)()
    assert ended.value.code == 2
    # Neither port is set, so REST's own default is no port.
    assert "no address to listen on" in capsys.readouterr().err


def test_every_flag_of_tensorflow_serving_is_known() -> None:
    options = {option.name for option in serve.params}
    assert set(UPSTREAM_FLAGS) <= options


@pytest.mark.parametrize(
    ("form", "value"), [("", True), ("=true", True), ("=1", True), ("=false", False), ("=0", False)]
)
def test_booleans_are_written_as_for_tensorflow_serving(form: str, value: bool) -> None:
    assert serve.make_context("serve", [f"--enable_batching{form}", "--port=1"]).params["enable_batching"] is value
