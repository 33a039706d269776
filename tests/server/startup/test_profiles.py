"""Tests of the profiles: they are defaults of flags, which flags and variables override."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from tests.deploy.dockerfile import ROOT
from tests.support.access import KeyFile
from tests.support.certificates import Authority
from tpuserve_server.startup.changed_flags import changed_flags
from tpuserve_server.startup.command import serve
from tpuserve_server.startup.profiles import describe_profile, profile_values
from tpuserve_server.startup.settings import flags
from tpuserve_server.startup.validation import read_settings, read_settings_json, settings_json

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
