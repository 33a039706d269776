"""The configurations in deploy/ray, as Ray reads them: their fields, the application, the policy and the models."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from ray.serve.config import AutoscalingConfig, gRPCOptions
from ray.serve.schema import ServeDeploySchema

from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.hosts.ray.demand_policy import DemandPolicy
from tpuserve_server.hosts.ray.ingress import add_tpuserve_services
from tpuserve_server.startup.ray_serve import app
from tpuserve_server.wire.model_server_config import model_configs

DEPLOY = Path(__file__).parents[3] / "deploy/ray"


def _read(name: str) -> dict[str, Any]:
    document = yaml.safe_load((DEPLOY / name).read_text())
    assert isinstance(document, dict)
    return yaml.safe_load(document["spec"]["serveConfigV2"]) if name == "rayservice.yaml" else document


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_ray_accepts_the_configuration(name: str) -> None:
    config = ServeDeploySchema.model_validate(_read(name))
    assert gRPCOptions(**config.grpc_options.model_dump()).grpc_servicer_func_callable == [add_tpuserve_services]
    (application,) = config.applications
    assert application.import_path == "tpuserve_server.startup.ray_serve:app"
    deployment = app(application.args)._bound_deployment
    (configured,) = application.deployments
    assert deployment.name == configured.name


@pytest.mark.parametrize("name", ["serve.yaml", "rayservice.yaml"])
def test_demand_chooses_the_number_of_replicas(name: str) -> None:
    (deployment,) = ServeDeploySchema.model_validate(_read(name)).applications[0].deployments
    scaling = AutoscalingConfig.model_validate(deployment.autoscaling_config)
    assert scaling.policy.get_policy().__name__ == DemandPolicy.__name__
    DemandPolicy(**scaling.policy.policy_kwargs)


def test_user_config_names_the_models() -> None:
    (deployment,) = ServeDeploySchema.model_validate(_read("serve.yaml")).applications[0].deployments
    (model,) = model_configs(json_format.ParseDict(deployment.user_config, ModelServerConfig()))
    assert (model.name, dict(model.version_labels)) == ("digits", {"stable": 1, "canary": 2})
