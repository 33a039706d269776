"""Tests for the overlay behind an Inference Gateway: its references, and the configuration of the endpoint picker."""

import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.custom_resources import PICKER_CONFIG, ROUTER_VALUES
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import server_container
from tpuserve_server.observe.metrics.catalogue import SERVER_QUEUE

FOLDER = OVERLAYS / "inference-gateway"
VALUES = yaml.safe_load((FOLDER / "router-values.yaml").read_text(encoding="utf-8"))["router"]
PAGE = ROOT / "docs/how-to/deploy/inference-gateway.md"
# The release of the page. The chart gives its name to the pool.
RELEASE = "tpuserve"


def picker_config() -> dict[str, Any]:
    """Return the configuration that the endpoint picker reads."""
    epp = VALUES["epp"]
    config: dict[str, Any] = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    return config


def test_values_have_the_fields_of_the_chart() -> None:
    jsonschema.validate(VALUES, ROUTER_VALUES, cls=jsonschema.Draft202012Validator)


def test_pool_selects_the_pods_on_their_rest_port() -> None:
    (deployment,) = of_kind(build(FOLDER), "Deployment").values()
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert VALUES["modelServers"]["matchLabels"].items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in server_container()["ports"]}
    assert VALUES["modelServers"]["targetPorts"] == [{"number": ports["http"]}]


def test_route_leads_to_the_pool_of_the_release() -> None:
    (route,) = of_kind(build(FOLDER), "HTTPRoute").values()
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", RELEASE)
    assert f"helm install {RELEASE} " in PAGE.read_text(encoding="utf-8")


def test_picker_config_has_the_fields_of_the_router() -> None:
    jsonschema.validate(picker_config(), PICKER_CONFIG, cls=jsonschema.Draft202012Validator)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**picker_config(), "parser": {}}, PICKER_CONFIG, cls=jsonschema.Draft202012Validator)


def test_every_plugin_is_declared_and_used() -> None:
    config = picker_config()
    declared = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    used = set(re.findall(r"pluginRef: ([\w-]+)", yaml.safe_dump(config)))
    assert used == declared


def test_queue_is_a_metric_with_one_series() -> None:
    (extractor,) = (each for each in picker_config()["plugins"] if each["type"] == "core-metrics-extractor")
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine["name"] == extractor["parameters"]["defaultEngine"]
    assert engine["queuedRequestsSpec"] == SERVER_QUEUE.name
    assert SERVER_QUEUE.labels == ()
