"""Tests for `--check_config` of `tpuserve serve` and `tensorflow_model_server`: its findings and exit code."""

import json
import os
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.certificates import Authority
from tests.support.device_programs import double_and_add, write_programs
from tests.support.v1_models import save_unassigned
from tpuserve_server.executors.tensorflow import TENSORFLOW
from tpuserve_server.startup.command import serve


@dataclass
class Checked:
    """The result of a check: exit code, and the messages by severity and subject."""

    exit_code: int
    findings: list[tuple[str, str, str]]

    def messages(self, severity: str, subject: str) -> list[str]:
        return [message for kind, what, message in self.findings if (kind, what) == (severity, subject)]


def check(*flags: str) -> Checked:
    result = CliRunner(env={"MODEL_BASE_PATH": None}).invoke(serve, ["--check_config=json", *flags])
    document = json.loads(result.stdout)
    findings = [(item["severity"], item["subject"], item["message"]) for item in document["findings"]]
    assert document["ok"] == (result.exit_code == 0)
    return Checked(result.exit_code, findings)


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    """Return a base path with version 7, whose files only a load would read."""
    version = tmp_path / "m" / "7"
    version.mkdir(parents=True)
    (version / "saved_model.pb").touch()
    return version.parent


def config_file(path: Path, *configs: str) -> str:
    each = "".join(f'config {{ model_platform: "tensorflow" {config} }}\n' for config in configs)
    path.write_text(f"model_config_list {{ {each} }}")
    return f"--model_config_file={path}"


def test_a_configuration_that_is_right_exits_0_and_says_what_would_be_served(base_path: Path) -> None:
    checked = check(f"--model_base_path={base_path}")
    assert checked.exit_code == 0
    assert checked.messages("ok", "model default") == [f"base path {base_path}; the server would serve version 7"]
    assert {severity for severity, _, _ in checked.findings} == {"ok"}


def test_text_is_a_line_for_each_finding_and_the_counts(base_path: Path) -> None:
    flags = ["--check_config", f"--model_base_path={base_path / '7'}"]
    result = CliRunner(env={"MODEL_BASE_PATH": None}).invoke(serve, flags)
    assert result.exit_code == 2
    *_, wrong, counts = result.stdout.splitlines()
    assert wrong.startswith(f"error    model default: base path {base_path}/7 is itself version 7")
    assert f"--model_base_path={base_path}, or" in wrong
    assert counts == "1 error, 0 warnings"


def test_every_wrong_flag_file_and_model_is_found_at_once(tmp_path: Path, base_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no_such_field: 1")
    checked = check(
        f"--model_base_path={base_path / '7'}",
        "--port=70000",
        "--drain_delay_seconds=-1",
        "--enable_batching",
        f"--batching_parameters_file={broken}",
        f"--monitoring_config_file={tmp_path}/absent",
        f"--ssl_config_file={broken}",
        f"--tensorflow_session_config_file={broken}",
        f"--grpc_socket_path={tmp_path}/absent/s",
        f"--request_log_path_prefix={broken}/log",
        f"--storage_cache_dir={broken}/cache",
        "--bind_address=192.0.2.1",
    )
    assert checked.exit_code == 2
    assert len(checked.messages("error", "flags")) == 2
    wrong = {subject for severity, subject, _ in checked.findings if severity == "error"}
    assert wrong == {
        *("flags", "--batching_parameters_file", "--monitoring_config_file", "--ssl_config_file", "--grpc_socket_path"),
        *("--tensorflow_session_config_file", "--request_log_path_prefix", "--storage_cache_dir", "--bind_address"),
        "model default",
    }


def test_flags_that_do_not_go_together_are_all_named() -> None:
    checked = check("--port=7", "--rest_api_port=7", "--batching_parameters_file=/absent")
    assert checked.exit_code == 2
    assert [message.partition(" ")[0] for message in checked.messages("error", "flags")] == [
        "port",
        "the",
        "batching_parameters_file",
    ]


def test_routes_of_vertex_ai_are_looked_at(tmp_path: Path, base_path: Path) -> None:
    base = f"--model_base_path={base_path}"
    checked = check(base, "--vertex_predict_route=/metrics")
    assert checked.exit_code == 2
    [message] = checked.messages("error", "routes of Vertex AI")
    assert "/metrics has another meaning in this server" in message
    broken = tmp_path / "monitoring.config"
    broken.write_text("nosuch: 1")
    checked = check(base, "--vertex_predict_route=/predict", f"--monitoring_config_file={broken}")
    assert [subject for severity, subject, _ in checked.findings if severity == "error"] == ["--monitoring_config_file"]
    assert checked.messages("ok", "routes of Vertex AI") == ["no route has another meaning in the server"]


@pytest.mark.parametrize(
    ("text", "subject", "error"),
    [
        ("", "models", "the configuration has no model, so the server is never ready"),
        (
            "model_version_policy { specific {} }",
            "model m",
            "its version policy `specific` names no version, so the server is never ready. Name versions, or remove "
            "model_version_policy",
        ),
        (
            'model_version_policy { specific { versions: 7 } } version_labels { key: "canary" value: 9 }',
            "model m",
            "label canary refers to version 9, which the version policy does not choose. The label never takes effect",
        ),
        (
            'version_labels { key: "canary" value: 3 }',
            "model m",
            "label canary refers to version 3, which the version policy does not choose. The label never takes effect",
        ),
    ],
)
def test_a_configuration_that_never_serves_its_models_is_an_error(
    tmp_path: Path, base_path: Path, text: str, subject: str, error: str
) -> None:
    (base_path / "3").mkdir()
    models = [f'name: "m" base_path: "{base_path}" {text}'] if text else []
    checked = check(config_file(tmp_path / "models.config", *models))
    assert (checked.exit_code, checked.messages("error", subject)) == (2, [error])


def test_a_server_may_start_without_models_if_the_operator_allows_it(tmp_path: Path) -> None:
    checked = check(config_file(tmp_path / "models.config"), "--allow_reload_without_models")
    assert (checked.exit_code, len(checked.messages("warning", "models"))) == (0, 1)


def test_every_model_of_a_file_is_looked_at(tmp_path: Path, base_path: Path) -> None:
    (tmp_path / "named" / "v1").mkdir(parents=True)
    (tmp_path / "empty" / "1").mkdir(parents=True)
    flag = config_file(
        tmp_path / "models.config",
        f'name: "good" base_path: "{base_path}"',
        f'name: "lacks" base_path: "{base_path}" model_version_policy {{ specific {{ versions: 7 versions: 9 }} }}',
        f'name: "labelled" base_path: "{base_path}" version_labels {{ key: "canary" value: 9 }}',
        f'name: "absent" base_path: "{tmp_path}/absent"',
        'name: "relative" base_path: "models/m"',
        'name: "scheme" base_path: "nosuch://b/m"',
        f'name: "named" base_path: "{tmp_path}/named"',
        f'name: "empty" base_path: "{tmp_path}/empty"',
        f'name: "version" base_path: "{base_path}/7"',
        f'name: "logged" base_path: "{base_path}" logging_config {{ log_collector_config {{ type: "x" }} }}',
        f'name: "good" base_path: "{base_path}"',
    )
    checked = check(flag)
    assert checked.exit_code == 2

    def errors(name: str) -> str:
        return "\n".join(checked.messages("error", f"model {name}"))

    assert errors("good") == "the configuration lists this name more than once. Give each model a different name"
    assert "lacks versions that the policy requests: 9" in errors("lacks")
    assert checked.messages("ok", "model lacks version 7")
    assert checked.messages("warning", "model labelled") == [
        "label canary refers to version 9, which does not exist. Requests with it fail until it does"
    ]
    assert "does not exist" in errors("absent")
    assert "to have an absolute path or URI" in errors("relative")
    assert "The server does not support paths of nosuch://" in errors("scheme")
    assert "contains no version directory such as 1/; it contains v1" in errors("named")
    assert "is not complete: its directory is empty" in checked.messages("error", "model empty version 1")[0]
    assert f'base_path: "{base_path}" in a model configuration' in errors("version")
    assert "Cannot find LogCollector::Factory for type: x" in errors("logged")


def test_ensembles_are_checked_against_the_whole_list(tmp_path: Path, base_path: Path) -> None:
    step = 'step {{ model_name: "{}" input_map {{ key: "x" value: "{}" }} output_map {{ key: "y" value: "{}" }} }}'

    def ensemble(name: str, *steps: tuple[str, str, str]) -> str:
        listed = " ".join(step.format(*one) for one in steps)
        return f'config {{ name: "{name}" model_platform: "ensemble" ensemble_scheduling {{ {listed} }} }}'

    path = tmp_path / "models.config"
    configs = [
        f'config {{ name: "m" base_path: "{base_path}" model_platform: "tensorflow" }}',
        ensemble("fine", ("m", "image", "features"), ("m", "features", "scores")),
        ensemble("circle", ("m", "1", "2"), ("m", "2", "1")),
        ensemble("lost", ("nosuch", "1", "2")),
        ensemble("itself", ("itself", "1", "2")),
    ]
    path.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    checked = check(f"--model_config_file={path}")
    assert checked.exit_code == 2
    assert checked.messages("ok", "model fine") == [
        "ensemble of m, m, from image to scores. This check does not compare the steps' signatures"
    ]
    assert checked.messages("error", "model circle") == [
        "its steps form a cycle: step 1 (m) -> step 2 (m) -> step 1 (m)"
    ]
    assert checked.messages("error", "model lost") == ["step 1 (nosuch): the configuration has no model nosuch"]
    assert checked.messages("error", "ensembles") == ["Ensembles contain each other: itself -> itself"]


def test_files_of_a_version_are_looked_at(base_path: Path) -> None:
    version = base_path / "7"
    (version / "assets").mkdir()
    (version / "assets" / "stray").symlink_to("/etc/hostname")
    assert "outside the model's base path" in check(f"--model_base_path={base_path}").findings[-1][2]
    (version / "assets" / "stray").unlink()
    (version / "batching_params.pbtxt").write_text("no_such_field: 1")
    flags = ("--enable_batching", "--enable_per_model_batching_parameters")
    assert "no_such_field" in check(f"--model_base_path={base_path}", *flags).findings[-1][2]
    assert check(f"--model_base_path={base_path}").exit_code == 0


def test_a_version_that_cannot_answer_is_named(tmp_path: Path) -> None:
    save_unassigned(tmp_path / "m" / "7")
    flags = (f"--model_base_path={tmp_path / 'm'}",)
    [message] = check(*flags).messages("error", "model default version 7")
    assert message.startswith("signature 'serving_default' reads the variable 'bias', which neither the checkpoint")
    assert check(*flags, "--lenient_loads").exit_code == 0
    save_unassigned(tmp_path / "m" / "8", "debug", "serving_default")
    assert check(*flags).exit_code == 0


def test_a_version_that_no_installed_package_runs_is_named(base_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    base, subject = f"--model_base_path={base_path}", "model default version 7"
    checked = check(base)
    assert checked.exit_code == 2
    assert checked.messages("error", subject) == [TENSORFLOW.missing("the version's SavedModel needs").message]
    write_programs(base_path / "7", double_and_add(), batch_sizes=(1,))
    assert check(base).exit_code == 0
    monkeypatch.setitem(sys.modules, "jax", None)
    assert "tpuserve-server[tensorflow]" in check(base).messages("error", subject)[0]
    (base_path / "7" / "model.tflite").touch()
    assert check(base, "--prefer_tflite_model").exit_code == 0


def test_a_missing_openvino_is_a_warning(base_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (f"--model_base_path={base_path}", "--openvino=auto")
    assert not check(*flags).messages("warning", "--openvino")
    monkeypatch.setitem(sys.modules, "openvino", None)
    checked = check(*flags)
    assert checked.exit_code == 0
    assert "pip install 'tpuserve-server[openvino]'" in checked.messages("warning", "--openvino")[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_this_user_cannot_read_is_named(base_path: Path) -> None:
    (base_path / "7" / "saved_model.pb").chmod(0)
    [found] = check(f"--model_base_path={base_path}").messages("error", "model default version 7")
    assert "saved_model.pb. Change its mode" in found


def test_ports_need_not_be_free_and_sockets_of_others_stay(tmp_path: Path, base_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other, socket.create_server(("127.0.0.1", 0)) as taken:
        other.bind(str(path))
        other.listen()
        port = taken.getsockname()[1]
        checked = check(f"--model_base_path={base_path}", f"--port={port}", f"--grpc_socket_path={path}")
        assert checked.exit_code == 0
    assert path.is_socket()


@pytest.mark.parametrize(("days", "said"), [(3, "expires at"), (-3, "expired at")])
def test_exposed_key_and_expiring_certificate_are_warnings(
    tmp_path: Path, base_path: Path, days: int, said: str
) -> None:
    file = tmp_path / "ssl"
    (tmp_path / "certificates").mkdir()
    own = Authority(tmp_path / "certificates").issue("localhost", not_after=datetime.now(UTC) + timedelta(days=days))
    key, certificate = (json.dumps(path.read_text()) for path in (own.key, own.cert))
    file.write_text(f"server_key: {key} server_cert: {certificate}")
    file.chmod(0o644)
    checked = check(f"--model_base_path={base_path}", f"--ssl_config_file={file}")
    assert checked.exit_code == 0
    exposed, expiring = checked.messages("warning", "--ssl_config_file")
    assert exposed == f"Other users can read the secret in '{file}' (mode 0644). Run: chmod o= '{file}'"
    assert said in expiring
    flags = (f"--model_base_path={base_path}", f"--tls_cert_file={own.cert}", f"--tls_key_file={own.key}")
    [expiring] = check(*flags).messages("warning", "--tls_cert_file")
    assert expiring.startswith(f"A certificate of '{own.cert}' {said} ")


def test_base_path_that_any_user_can_write_to_is_a_warning(base_path: Path) -> None:
    assert check(f"--model_base_path={base_path}").messages("warning", "model default") == []
    base_path.chmod(0o777)
    checked = check(f"--model_base_path={base_path}")
    [found] = checked.messages("warning", "model default")
    assert found.startswith(f"any user of this machine can add a version to {base_path}, and a model is code")
    assert checked.exit_code == 0


def test_certificates_are_read(tmp_path: Path, base_path: Path) -> None:
    file = tmp_path / "ssl"
    folder = tmp_path / "certificates"
    folder.mkdir()
    own = Authority(folder).server
    key, certificate = (json.dumps(path.read_text()) for path in (own.key, own.cert))
    file.write_text(f"server_key: {key} server_cert: {certificate}")
    file.chmod(0o600)
    valid = check(f"--model_base_path={base_path}", f"--ssl_config_file={file}")
    assert (valid.exit_code, valid.messages("warning", "--ssl_config_file")) == (0, [])
    file.write_text(f"server_key: {certificate} server_cert: {certificate}")
    [found] = check(f"--model_base_path={base_path}", f"--ssl_config_file={file}").messages(
        "error", "--ssl_config_file"
    )
    assert "server_key is not a PEM private key" in found


def test_pem_files_are_checked_together(tmp_path: Path, base_path: Path) -> None:
    own, other = Authority(tmp_path).server, Authority(tmp_path).server
    for pem in (own, other):
        pem.key.chmod(0o600)
    flags = (f"--model_base_path={base_path}", f"--tls_cert_file={own.cert}")
    valid = check(*flags, f"--tls_key_file={own.key}")
    assert (valid.exit_code, valid.messages("warning", "--tls_cert_file")) == (0, [])
    assert valid.messages("ok", "--tls_cert_file") == [f"'{own.cert}' is valid"]
    [found] = check(*flags, f"--tls_key_file={other.key}").messages("error", "--tls_cert_file")
    assert found == f"Key '{other.key}' does not belong to certificate '{own.cert}'."
    [found] = check(*flags, f"--tls_key_file={own.cert}").messages("error", "--tls_cert_file")
    assert found.startswith(f"Key '{own.cert}' is not a PEM private key: ")


def test_credentials_are_read(tmp_path: Path, base_path: Path) -> None:
    keys, jwks = tmp_path / "credentials", tmp_path / "jwks"
    keys.write_text("alice read\n")
    jwks.write_text("{}")
    flags = (
        f"--model_base_path={base_path}", f"--credentials_file={keys}", f"--jwt_jwks_file={jwks}",
        "--jwt_issuer=i", "--jwt_audience=a",
    )  # fmt: skip
    checked = check(*flags)
    assert checked.exit_code == 2
    assert checked.messages("error", "--credentials_file")[0].startswith("line 1: 2 words")
    assert checked.messages("error", "--jwt_jwks_file")[0].startswith("it is no JWKS")
    # The models are checked, too.
    assert checked.messages("ok", "model default")
    assert check(f"--model_base_path={base_path}", "--jwt_issuer=i").messages("error", "flags")
