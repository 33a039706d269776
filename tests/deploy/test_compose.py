"""Tests for the compose file: the server's write access, its stop timeout, and its image."""

import re

from tests.deploy.dockerfile import ROOT, environment, instruction, read_dockerfile
from tests.deploy.manifests import parse_flags, read

SERVER = read(ROOT / "deploy/compose.yaml")["services"]["server"]
IMAGE = read_dockerfile().final


def seconds(duration: str) -> int:
    """Return the seconds of a compose duration such as ``90s`` or ``10m``."""
    value, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]  # None fails the test
    return int(value) * {"s": 1, "m": 60}[unit]


def test_image_is_built_from_the_repositorys_root() -> None:
    assert (ROOT / "deploy" / SERVER["build"]["context"] / "Dockerfile").samefile(ROOT / "Dockerfile")


def test_server_writes_to_tmp_alone_and_has_no_privileges() -> None:
    assert SERVER["read_only"] is True
    assert [mount.split(":")[0] for mount in SERVER["tmpfs"]] == ["/tmp"]
    assert SERVER["cap_drop"] == ["ALL"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]


def test_models_are_mounted_read_only_where_the_image_looks() -> None:
    (models,) = SERVER["volumes"]
    assert models["target"] == environment(IMAGE)["MODEL_BASE_PATH"]
    assert models["read_only"] is True


def test_ports_are_the_images_and_not_open_to_the_network() -> None:
    published = [port.split(":") for port in SERVER["ports"]]
    assert [port for *_, port in published] == instruction(IMAGE, "EXPOSE").words
    assert {address for address, *_ in published} == {"127.0.0.1"}


def test_docker_waits_longer_than_the_drain_takes() -> None:
    flags = parse_flags(SERVER.get("command", []))
    assert seconds(SERVER["stop_grace_period"]) > flags["drain_delay_seconds"] + flags["drain_timeout_seconds"] + 10


def test_health_is_the_images_own_check_with_time_to_load() -> None:
    assert "test" not in SERVER["healthcheck"]
    assert seconds(SERVER["healthcheck"]["start_period"]) >= 600
