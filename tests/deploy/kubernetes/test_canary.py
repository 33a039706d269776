"""Tests for the overlay `canary`: two servers that differ in one version, and routes that divide the requests."""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest

CANARY = build(OVERLAYS / "canary")
STABLE, CANDIDATE = "tpuserve-stable", "tpuserve-canary"


def route(kind: str) -> Manifest:
    """Return the only route of a kind."""
    (found,) = of_kind(CANARY, kind).values()
    return found


def pod(name: str) -> Manifest:
    """Return the specification of a Deployment's pods."""
    found = of_kind(CANARY, "Deployment")[name]["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def config(name: str) -> model_server_config_pb2.ModelConfig:
    """Return the only model in the configuration file of a Deployment."""
    (volume,) = (each["configMap"] for each in pod(name)["volumes"] if "configMap" in each)
    text = of_kind(CANARY, "ConfigMap")[volume["name"]]["data"]["models.config"]
    (found,) = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
    return found


@pytest.mark.parametrize(("kind", "port"), [("GRPCRoute", "grpc"), ("HTTPRoute", "http")])
def test_a_tenth_of_the_requests_goes_to_the_canary(kind: str, port: str) -> None:
    (rule,) = route(kind)["spec"]["rules"]
    assert {each["name"]: each["weight"] for each in rule["backendRefs"]} == {STABLE: 90, CANDIDATE: 10}
    for backend in rule["backendRefs"]:
        ports = {each["name"]: each["port"] for each in of_kind(CANARY, "Service")[backend["name"]]["spec"]["ports"]}
        assert backend["port"] == ports[port]


def test_routes_belong_to_the_gateway_and_share_no_hostname() -> None:
    kinds = ("GRPCRoute", "HTTPRoute")
    assert {parent["name"] for kind in kinds for parent in route(kind)["spec"]["parentRefs"]} == set(
        of_kind(CANARY, "Gateway")
    )
    grpc, rest = (set(route(kind)["spec"]["hostnames"]) for kind in kinds)
    assert not grpc & rest


def test_servers_differ_in_the_version_alone() -> None:
    stable, candidate = (pod(name)["containers"][0] for name in (STABLE, CANDIDATE))
    assert stable == candidate
    assert [config(name).model_version_policy.specific.versions for name in (STABLE, CANDIDATE)] == [[1], [2]]
    assert config(STABLE).base_path == config(CANDIDATE).base_path


def test_servers_read_the_same_claim() -> None:
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for name in (STABLE, CANDIDATE)
        for volume in pod(name)["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == set(of_kind(CANARY, "PersistentVolumeClaim"))
    assert len(claims) == 1
