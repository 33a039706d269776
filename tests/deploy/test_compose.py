"""Tests for the compose file: its schema, privileges, ports, mounts, and how its services find each other."""

import json
import re
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from deploy.envoy.placement import ENVOY
from tests.deploy.compose import COMPOSE, DIRECTORY, mounts, on_this_machine, service
from tests.deploy.dockerfile import ROOT, environment, instruction, read_dockerfile
from tests.deploy.manifests import Manifest, parse_flags, read
from tests.deploy.observability.promtool import run_promtool
from tests.support.optional import needs
from tpuserve_loadtests.cli import loadtest

SERVER = service("server")
SERVICES = list(COMPOSE["services"])
KEYS = read(DIRECTORY / "compose/credentials.yaml")
IMAGE = read_dockerfile().final
SCHEMA = Draft7Validator(json.loads((Path(__file__).parent / "schemas/compose-spec.json").read_text(encoding="utf-8")))


def seconds(duration: str) -> int:
    """Return the seconds of a compose duration such as ``90s`` or ``10m``."""
    value, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]  # None fails the test
    return int(value) * {"s": 1, "m": 60}[unit]


def test_file_has_the_form_of_the_compose_specification() -> None:
    SCHEMA.validate(COMPOSE)


def test_a_tpu_has_the_device_and_unlimited_locked_memory() -> None:
    overlay = read(DIRECTORY / "compose/tpu.yaml")
    SCHEMA.validate(overlay)
    assert overlay["services"].keys() == {"server"}
    server = overlay["services"]["server"]
    assert server["ulimits"] == {"memlock": -1}
    assert parse_flags(server["command"])["device"] == "tpu"
    assert set(SERVER["command"]) <= set(server["command"])


def test_schema_finds_a_wrong_field() -> None:
    wrong = {"services": {"server": {"image": "server", "commands": []}}}
    with pytest.raises(ValidationError, match="commands"):
        SCHEMA.validate(wrong)


def test_image_is_built_from_the_repositorys_root() -> None:
    for name in ("server", "loadtest"):
        context = service(name)["build"]["context"]
        assert (DIRECTORY / context / "Dockerfile").samefile(ROOT / "Dockerfile")


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_no_privileges_and_a_read_only_root(name: str) -> None:
    found = service(name)
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]


def test_server_writes_to_tmp_alone() -> None:
    assert [mount.split(":")[0] for mount in SERVER["tmpfs"]] == ["/tmp"]


def test_models_are_mounted_read_only_where_the_image_looks() -> None:
    (models,) = SERVER["volumes"]
    assert models["target"] == environment(IMAGE)["MODEL_BASE_PATH"]
    assert models["read_only"] is True


def test_ports_are_the_images() -> None:
    assert [port.split(":")[2] for port in SERVER["ports"]] == instruction(IMAGE, "EXPOSE").words


def test_no_port_is_open_to_the_network_and_none_is_published_twice() -> None:
    ports = [port.split(":") for name in SERVICES for port in service(name).get("ports", [])]
    assert {address for address, *_ in ports} == {"127.0.0.1"}
    hosts = [port for _, port, _ in ports]
    assert sorted(set(hosts)) == sorted(hosts)


def test_docker_waits_longer_than_the_drain_takes() -> None:
    flags = parse_flags(SERVER["command"])
    assert seconds(SERVER["stop_grace_period"]) > flags["drain_delay_seconds"] + flags["drain_timeout_seconds"] + 10


def test_health_is_the_images_own_check_with_time_to_load() -> None:
    assert "test" not in SERVER["healthcheck"]
    assert seconds(SERVER["healthcheck"]["start_period"]) >= 600


def test_second_server_differs_by_its_profile_and_ports_alone() -> None:
    own = {key: value for key, value in SERVER.items() if key not in ("build", "ports")}
    assert service("server-2") == own | {"profiles": ["balanced"]}


def test_default_services_are_the_server_and_its_monitoring() -> None:
    assert [name for name in SERVICES if "profiles" not in service(name)] == ["server", "prometheus", "grafana"]


@pytest.mark.parametrize("name", [name for name in SERVICES if "volumes" in service(name)])
def test_mounted_files_exist_and_are_read_only(name: str) -> None:
    for target, source in mounts(service(name)).items():
        assert target == "/models" or source.exists()
    for volume in service(name)["volumes"]:
        assert not str(volume).startswith(".") or volume.endswith(":ro")
    named = {volume.split(":")[0] for volume in service(name)["volumes"] if not str(volume).startswith((".", "{"))}
    assert named <= COMPOSE["volumes"].keys()


def test_envoy_and_prometheus_find_all_servers_by_their_alias() -> None:
    aliases = SERVER["networks"]["default"]["aliases"]
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in _prometheus()["scrape_configs"]}
    assert jobs["tpuserve"] == {"names": aliases, "type": "A", "port": 8501, "refresh_interval": "15s"}
    assert aliases == ["servers"]
    assert f"address: {aliases[0]}," in (DIRECTORY / "envoy/envoy.yaml").read_text(encoding="utf-8")


def test_prometheus_scrapes_envoys_metrics_port() -> None:
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in _prometheus()["scrape_configs"]}
    listeners = read(DIRECTORY / "envoy/envoy.yaml")["static_resources"]["listeners"]
    (metrics,) = (each for each in listeners if each["name"] == "metrics")
    assert jobs["envoy"]["names"] == ["envoy"]
    assert jobs["envoy"]["port"] == metrics["address"]["socket_address"]["port_value"]


def test_envoy_accepts_the_arguments_and_the_mounted_configuration() -> None:
    envoy = service("envoy")
    arguments = [on_this_machine(argument, envoy) for argument in envoy["command"]]
    done = subprocess.run([ENVOY, *arguments, "--mode", "validate"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs("promtool")
def test_promtool_accepts_prometheus_configuration(tmp_path: Path) -> None:
    rules = [on_this_machine(pattern, service("prometheus")) for pattern in _prometheus()["rule_files"]]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(_prometheus() | {"rule_files": rules}))
    assert "4 rule files" in run_promtool("check", "config", file)


def test_grafana_has_every_variable_and_file_of_its_provisioning() -> None:
    grafana = service("grafana")
    values = grafana["environment"]
    provisioning = mounts(grafana)[values["GF_PATHS_PROVISIONING"]]
    files = {path.parent.name: path.read_text(encoding="utf-8") for path in provisioning.rglob("*.yaml")}
    assert files.keys() == {"dashboards", "datasources"}
    assert set(re.findall(r"\$(\w+)", "".join(files.values()))) <= values.keys()
    assert mounts(grafana)[f"{values['TPUSERVE_DASHBOARDS']}/tpuserve.json"].exists()
    (port,) = service("prometheus")["ports"]
    assert values["PROMETHEUS_URL"] == f"http://prometheus:{port.rpartition(':')[2]}"


def _prometheus() -> Manifest:
    return read(mounts(service("prometheus"))["/etc/prometheus/prometheus.yaml"])


def test_file_of_keys_has_the_form_of_the_compose_specification() -> None:
    SCHEMA.validate(KEYS)
    assert KEYS["services"].keys() <= COMPOSE["services"].keys()


def test_file_of_keys_adds_to_the_commands() -> None:
    """Compose replaces the command of a service as a whole."""
    for name, changed in KEYS["services"].items():
        if "command" in changed:
            command = COMPOSE["services"][name]["command"]
            assert changed["command"][: len(command)] == command
    flags = parse_flags(KEYS["services"]["server"]["command"])
    assert str(flags["credentials_file"]) == "/run/secrets/credentials"
    added = KEYS["services"]["loadtest"]["command"][len(service("loadtest")["command"]) :]
    assert added == ["--api-key-file", "/run/secrets/loadtest-key", "--allow-plaintext-key"]
    loadtest_command = loadtest.get_command(click.Context(loadtest), "run")
    assert loadtest_command is not None
    assert {option for each in loadtest_command.params for option in each.opts} >= {added[0], added[2]}


def test_services_get_the_secrets_that_they_name_and_no_others() -> None:
    used = {name: changed["secrets"] for name, changed in KEYS["services"].items()}
    assert used == {
        "server": ["credentials"],
        "server-2": ["credentials"],
        "prometheus": ["metrics-key"],
        "loadtest": ["loadtest-key"],
    }
    assert {secret for secrets in used.values() for secret in secrets} == KEYS["secrets"].keys()


def test_prometheus_with_keys_differs_by_its_key_alone() -> None:
    (volume,) = KEYS["services"]["prometheus"]["volumes"]
    source, target, _ = volume.split(":")
    assert target in mounts(service("prometheus"))
    config = read(DIRECTORY / source)
    (job,) = (job for job in config["scrape_configs"] if job["job_name"] == "tpuserve")
    assert job.pop("authorization") == {"credentials_file": "/run/secrets/metrics-key"}
    assert config == _prometheus()
