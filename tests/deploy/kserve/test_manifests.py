"""Tests for KServe's resources: valid, and consistent with the runtime and the server."""

from pathlib import Path, PurePosixPath

import jsonschema
import pytest

from tests.deploy.custom_resources import validate_custom
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import validate
from tests.deploy.manifests import Manifest, parse_flags, read

KSERVE = ROOT / "deploy/kserve"
RUNTIME = read(KSERVE / "clusterservingruntime.yaml")
(CONTAINER,) = RUNTIME["spec"]["containers"]
SERVICES = sorted(
    path for path in KSERVE.rglob("*.yaml") if path.stem not in ("kustomization", "clusterservingruntime")
)


def predictors(path: Path) -> list[Manifest]:
    """Return the predictor of an InferenceService, and those of its canaries."""
    spec = read(path)["spec"]
    return [spec["predictor"], *(each["predictor"] for each in spec.get("canary", []))]


def pod_of(container: Manifest, **spec: object) -> Manifest:
    """Return a Pod with this container, for Kubernetes' own schema."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod"},
        "spec": {"containers": [container], **spec},
    }


def test_runtime_is_valid() -> None:
    validate(RUNTIME)
    validate(pod_of(CONTAINER, volumes=RUNTIME["spec"]["volumes"]))


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: str(path.relative_to(KSERVE)))
def test_inference_service_is_valid(path: Path) -> None:
    validate(read(path))
    for predictor in predictors(path):
        model = predictor["model"]
        changes = {key: model[key] for key in ("args", "ports", "resources") if key in model}
        pod = {key: predictor[key] for key in ("nodeSelector", "tolerations") if key in predictor}
        # KServe adds the mounts and volumes of the service to those of the runtime.
        changes["volumeMounts"] = [*CONTAINER["volumeMounts"], *model.get("volumeMounts", [])]
        volumes = [*RUNTIME["spec"]["volumes"], *predictor.get("volumes", [])]
        assert {mount["name"] for mount in changes["volumeMounts"]} == {volume["name"] for volume in volumes}
        validate(pod_of({**CONTAINER, **changes}, volumes=volumes, **pod))


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: str(path.relative_to(KSERVE)))
def test_runtime_is_selected_for_its_format_and_protocol(path: Path) -> None:
    (automatic,) = (each for each in RUNTIME["spec"]["supportedModelFormats"] if each["autoSelect"])
    for predictor in predictors(path):
        assert predictor["model"]["modelFormat"]["name"] == automatic["name"]
        assert predictor["model"].get("protocolVersion", "v1") in RUNTIME["spec"]["protocolVersions"]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: str(path.relative_to(KSERVE)))
def test_server_parses_the_arguments_of_runtime_and_service(path: Path) -> None:
    for predictor in predictors(path):
        # KServe appends the arguments of the service to those of the runtime.
        flags = parse_flags([*CONTAINER["args"], *predictor["model"].get("args", [])])
        assert flags["model_name"] == "{{.Name}}"
        for storage in predictor.get("storageUris", []):
            # The mount path is a version directory of the runtime's model.
            folder, _, version = storage["mountPath"].rpartition("/")
            assert (folder, version.isdigit()) == (flags["model_artifact_uri"], True)
            assert storage["uri"].endswith(f"/{version}")
        if flags["credentials_file"] is not None:
            mounts = [mount["mountPath"] for mount in predictor["model"]["volumeMounts"]]
            assert str(PurePosixPath(flags["credentials_file"]).parent) in mounts


def test_ports_are_those_that_kserve_expects() -> None:
    flags = parse_flags(CONTAINER["args"])
    # A container without ports gets requests on 8080.
    assert flags["rest_api_port"] == 8080
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == "8080"
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {8080}
    (service,) = (read(path) for path in SERVICES if path.stem == "inferenceservice-grpc")
    (port,) = service["spec"]["predictor"]["model"]["ports"]
    assert port == {"name": "h2c", "containerPort": flags["port"], "protocol": "TCP"}


def test_drain_fits_into_the_grace_period_of_kubernetes() -> None:
    flags = parse_flags(CONTAINER["args"])
    assert flags["drain_delay_seconds"] + flags["drain_timeout_seconds"] + 10 <= 30


def test_pod_meets_the_restricted_security_standard() -> None:
    context = CONTAINER["securityContext"]
    assert (context["runAsNonRoot"], context["allowPrivilegeEscalation"], context["privileged"]) == (True, False, False)
    assert (context["readOnlyRootFilesystem"], context["capabilities"]) == (True, {"drop": ["ALL"]})


def test_a_predictor_with_two_kinds_of_storage_is_an_error() -> None:
    service = read(KSERVE / "canary.yaml")
    validate_custom(service)
    service["spec"]["predictor"]["model"]["storageUri"] = "s3://BUCKET/models/digits"
    with pytest.raises(jsonschema.ValidationError):
        validate_custom(service)
