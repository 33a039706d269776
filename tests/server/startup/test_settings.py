import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from tests.deploy.dockerfile import ROOT
from tests.support.access import KeyFile
from tests.support.certificates import Authority
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.batching.parameters import BatchingMode, BatchingParameters, PaddingPolicy
from tpuserve_server.core.terms.options import LoadPolicy
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.startup.build_facts import changed_flags
from tpuserve_server.startup.command import serve
from tpuserve_server.startup.settings import Flag, Settings, flags
from tpuserve_server.startup.validation import (
    describe_profile,
    profile_values,
    read_settings,
    read_settings_json,
    settings_json,
)


def test_defaults_are_tensorflow_servings_where_it_has_them() -> None:
    settings = read_settings(model_base_path="/models/m")
    listening, models = settings.listening, settings.models
    assert (listening.port, listening.rest_api_port, models.model_name) == (8500, 8501, "default")
    assert models.file_system_poll_wait_seconds == 1
    assert listening.rest_api_timeout_in_ms == 30000
    assert settings.batching_source.enable_batching is None


def test_settings_survive_the_way_to_the_embedded_interpreter() -> None:
    settings = read_settings(
        model_base_path="/m",
        allowed_batch_sizes=(1, 8),
        grpc_socket_path=Path("/run/s"),
        batching_mode=BatchingMode.GREEDY,
        batch_padding_policy=PaddingPolicy.PAD_UP,
        mesh=MeshShape(2, 4),
    )
    assert read_settings_json(settings_json(settings)) == settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"port": 0, "rest_api_port": 0}, "no address to listen on"),
        ({"port": 9000, "rest_api_port": 9000}, "both 9000"),
        ({"port": 70000}, "less than or equal to 65535"),
        ({"mesh": "data=2,batch=4"}, "expected data=N,model=M with whole numbers from 1, or one of the two"),
        ({"mesh": "data=0"}, "expected data=N,model=M"),
        ({"mesh": "model=2,model=4"}, "expected data=N,model=M"),
        ({"device": "npu"}, "Input should be 'auto', 'tpu', 'gpu' or 'cpu'"),
        ({"model_base_path": None}, "no model to serve"),
        ({"model_base_path": ""}, "no model to serve"),
        ({"grpc_channel_arguments": "grpc.max_connection_age_ms"}, "expected name=value,name=value"),
        ({"batching_parameters_file": "/b"}, "is set without setting enable_batching to true"),
        (
            {
                "tensorflow_session_parallelism": 1,
                "tensorflow_intra_op_parallelism": 1,
                "tensorflow_inter_op_parallelism": 1,
            },
            "you cannot configure all",
        ),
        ({"allowed_batch_sizes": (4, 2)}, "ascending"),
        ({"allowed_batch_sizes": (0, 2)}, "positive"),
        ({"allowed_batch_sizes": (1, 2), "max_batch_size": 4}, "last entry was 2; expected 4"),
        ({"latency_objective_ms": 0}, "latency_objective_ms must be positive; was 0"),
        ({"latency_objective_ms": 20, "batch_timeout_micros": 100}, "contradict each other"),
        ({"batching_mode": "objective"}, "objective requires latency_objective_ms, such as 20"),
        ({"batching_mode": "fast"}, "Input should be 'greedy', 'timeout' or 'objective'"),
        (
            {"trace_sample_ratio": 0.5},
            "trace_sample_ratio is set without trace_endpoint, so the server would trace no requests",
        ),
        ({"trace_slow_ms": 0}, "trace_slow_ms is set without trace_endpoint"),
        ({"trace_max_per_second": 10}, "trace_max_per_second is set without trace_endpoint"),
        ({"access_log_sample_ratio": 0.5}, "access_log_sample_ratio is 0.5, but access_log is off"),
        ({"access_log": "errors", "access_log_sample_ratio": 0}, "is 0, but access_log is errors"),
        ({"no_such_setting": 1}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        read_settings(**{"model_base_path": "/m", **fields})


def test_every_batching_flag_reaches_the_parameters() -> None:
    settings = read_settings(
        model_base_path="/m",
        latency_objective_ms=20,
        latency_percentile=95,
        batch_padding_policy=PaddingPolicy.BATCH_DOWN,
        sequence_buckets=(16, 32),
        low_priority_max_enqueued_batches=3,
        num_batch_threads=2,
        scheduling_weight=2,
    )
    assert settings.batching == BatchingParameters(
        latency_objective_ms=20,
        latency_percentile=95,
        batch_padding_policy=PaddingPolicy.BATCH_DOWN,
        sequence_buckets=(16, 32),
        low_priority_max_enqueued_batches=3,
        num_batch_threads=2,
        scheduling_weight=2,
    )
    waiting = read_settings(model_base_path="/m", batching_mode=BatchingMode.TIMEOUT, batch_timeout_micros=500)
    assert waiting.batching.options().timeout_s == 0.0005


def test_a_file_flag_set_to_nothing_is_not_set() -> None:
    settings = read_settings(model_base_path="/m", batching_parameters_file="")
    assert settings.batching_source.batching_parameters_file is None


def test_channel_arguments_are_numbers_where_they_look_so() -> None:
    settings = read_settings(model_base_path="/m", grpc_channel_arguments="a.b=7,c=d")
    assert settings.listening.grpc_channel_arguments == (("a.b", 7), ("c", "d"))
    assert read_settings_json(settings_json(settings)) == settings


@pytest.mark.parametrize("name", ["file_system_poll_wait_seconds", "model_config_file_poll_wait_seconds"])
@pytest.mark.parametrize("value", [-1, 1e10, float("inf"), float("nan")])
def test_times_that_no_thread_can_wait_for_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        read_settings(**{"model_base_path": "/m", name: value})


def test_no_two_options_declare_the_same_flag() -> None:
    names = [flag.name for flag in flags()]
    assert sorted(names) == sorted(set(names))


def test_every_flag_reaches_the_field_that_declares_it() -> None:
    """Set each flag to a value other than the default, and pass the settings as text to a process."""
    values = {flag.name: _other_value(flag) for flag in flags()}
    settings = Settings.of(values)
    for flag in flags():
        assert settings.values()[flag.name] == values[flag.name]
    assert read_settings_json(settings_json(settings)) == settings


def _other_value(flag: Flag) -> object:
    special: dict[str, object] = {
        "rest_api_port": 9,
        "vertex_health_route": "/health",
        "vertex_predict_route": "/predict",
        "model_artifact_uri": "gs://bucket/m",
        "reload_roots": ("/models",),
        "reload_log_roots": ("/logs",),
        "mesh": MeshShape(2, 4),
        "anonymous_roles": ("read",),
        "grpc_channel_arguments": (("a.b", 7), ("c", "d")),
        "tensorflow_session_parallelism": 0,
        "latency_percentile": 95.0,
        "ssl_config_file": None,  # The certificates have one source: the other flags name it.
        "allowed_batch_sizes": (1, 7),
        "enable_batching": True,
        "batch_timeout_micros": None,
        "batching_mode": BatchingMode.OBJECTIVE,
        "load_policy": LoadPolicy.ON_DEMAND,
        "batch_padding_policy": PaddingPolicy.PAD_UP,
        "access_log": "all",
        "access_log_sample_ratio": 0.5,
        "request_log_sampling_rate": 0.5,
        "trace_endpoint": "http://collector:4318",
        "trace_sample_ratio": 0.5,
    }
    if flag.name in special:
        return special[flag.name]
    if get_origin(flag.type) is Literal:
        return next(value for value in get_args(flag.type) if value != flag.default)
    samples = {bool: not flag.default, int: 7, float: 7.0, str: "x", Path: Path("/x")}
    kinds = [kind for kind in get_args(flag.type) or (flag.type,) if kind in samples]
    value = samples[kinds[0]]
    if get_origin(flag.type) is tuple:
        return (value,)
    return value if value != flag.default else 8


EDGE = {"profile": "edge", "ssl_config_file": "/tls", "credentials_file": "/keys", "model_base_path": "/m"}


def test_edge_changes_the_defaults_of_the_flags_that_it_names() -> None:
    values, usual = read_settings(**EDGE).values(), {flag.name: flag.default for flag in flags()}
    changed = {name for name, value in values.items() if value != usual[name]}
    assert changed == {*profile_values("edge"), *EDGE}
    assert values["grpc_channel_arguments"][0] == ("grpc.max_concurrent_streams", 100)


def test_status_shows_the_values_of_the_profile() -> None:
    shown = {flag.name: flag.value for flag in changed_flags(read_settings(**EDGE))}
    assert shown["profile"] == "edge"
    assert shown["max_request_bytes"] == 8 << 20
    assert shown.keys() >= profile_values("edge").keys()


def test_given_values_win_in_the_next_process_too() -> None:
    settings = read_settings(**EDGE, max_request_bytes=1000)
    assert settings.listening.max_request_bytes == 1000
    assert read_settings_json(settings_json(settings)) == settings


@pytest.mark.parametrize("values", [{"profile": "edge"}, {"profile": "edge", "ssl_config_file": ""}])
def test_edge_without_tls_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="profile edge needs ssl_config_file"):
        read_settings(**values)


def test_edge_without_identities_is_refused() -> None:
    with pytest.raises(ValidationError, match="profile edge needs credentials_file, jwt_jwks_file or anonymous_roles"):
        read_settings(profile="edge", ssl_config_file="/tls")
    public = read_settings(profile="edge", ssl_config_file="/tls", anonymous_roles="predict", model_base_path="/m")
    assert public.identity.anonymous_roles == ("predict",)


def test_unknown_profile_is_refused() -> None:
    with pytest.raises(ValidationError, match="profile"):
        read_settings(profile="internet")


def findings(*arguments: str, **environment: str) -> str:
    """Return the output of a check of the configuration, which needs every value to be valid."""
    checked = CliRunner(env={"MODEL_BASE_PATH": None, **environment}).invoke(serve, ["--check_config", *arguments])
    return checked.output


def test_flags_and_variables_override_the_profile_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/saved_model.pb").touch()
    (tmp_path / "tls").mkdir()
    own = Authority(tmp_path / "tls").server
    key, certificate = (json.dumps(path.read_text()) for path in (own.key, own.cert))
    config = tmp_path / "ssl.config"
    config.touch(mode=0o600)
    config.write_text(f"server_key: {key} server_cert: {certificate}")
    keys = KeyFile(tmp_path / "keys")
    keys.add("shop", "predict")
    common = [f"--model_base_path={tmp_path}/m", f"--credentials_file={keys.path}", f"--ssl_config_file={config}"]
    off = "access_log_sample_ratio is 0.5, but access_log is off"
    sampled = [*common, "--access_log_sample_ratio=0.5"]
    assert off not in findings("--profile=edge", *sampled)
    assert off in findings("--profile=edge", "--access_log=off", *sampled)
    assert off in findings("--access_log=off", *sampled, TPUSERVE_SERVE_PROFILE="edge")
    assert off in findings("--profile=edge", *sampled, TPUSERVE_SERVE_ACCESS_LOG="off")
    assert "profile edge needs ssl_config_file" in findings("--profile=edge", *common[:2])


def test_page_lists_the_flags_of_the_profile() -> None:
    page = (ROOT / "docs/how-to/operate/edge.md").read_text(encoding="utf-8")
    section = page.partition("## Flags of the profile\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `--(\w+)=([^`]*)` \|", section, re.MULTILINE))
    assert listed == dict(re.findall(r"--(\w+)=(\S+)", describe_profile("edge")))


def test_the_uri_of_a_file_reaches_the_serving_process_unchanged() -> None:
    names = [flag.name for flag in flags() if flag.type == FileName | None]
    assert set(names) == {
        "ssl_config_file", "model_config_file", "require_signed", "batching_parameters_file",
        "tensorflow_session_config_file", "monitoring_config_file", "credentials_file", "jwt_jwks_file",
        "tls_cert_file", "tls_key_file", "tls_client_ca_file",
    }  # fmt: skip
    names.remove("ssl_config_file")  # The certificates have one source.
    uris = {name: f"s3://bucket/{name}" for name in names}
    others = {"enable_batching": True, "jwt_issuer": "i", "jwt_audience": "a"}
    values = read_settings_json(settings_json(read_settings(**uris, **others))).values()
    assert {name: values[name] for name in names} == uris
