"""Tests for the Helm chart, by Helm itself: its objects are those of the overlays, and valid for Kubernetes."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.helm.chart import CHART
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, build, build_with, validate
from tests.deploy.manifests import Manifest, parse_flags
from tests.deploy.pod_security import excesses, violations
from tests.support.optional import cannot_run
from tpuserve_exporter.deployment.manifest_check import check_manifest
from tpuserve_exporter.options.tpu import FAMILIES

HELM = ROOT / ".helm/helm"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


def template(*arguments: str | Path, release: str = "tpuserve", text: str = "") -> tuple[Manifest, ...]:
    """Return the resources of `helm template`. `text` is a file of values."""
    done = run_helm("template", release, CHART, "--namespace=models", "--values=-", *arguments, stdin=text)
    assert done.returncode == 0, done.stderr
    return tuple(each for each in yaml.safe_load_all(done.stdout) if each)


def run_helm(*arguments: str | Path, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Run Helm. Skip if `make helm` was not run."""
    if not HELM.exists():
        cannot_run("make helm was not run")
    return subprocess.run([HELM, *arguments], input=stdin, capture_output=True, text=True, check=False)


def comparable(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """Return the resources by kind and name, without the differences between Helm and Kustomize.

    These are the label `managed-by`, annotations of Helm, the hash in a ConfigMap's name, the order of arguments and
    variables, and the form of a YAML text.
    """
    found = {}
    for each in json.loads(json.dumps(manifests)):
        each["metadata"].get("labels", {}).pop("app.kubernetes.io/managed-by", None)
        each["metadata"].pop("annotations", None)
        text = json.dumps(_ordered(each))
        found[f"{each['kind']} {each['metadata']['name']}"] = text
    hashed = {name: re.sub("-[a-z0-9]{10}$", "", name) for name in found if name.startswith("ConfigMap")}
    for name, plain in hashed.items():
        old, new = name.split()[1], plain.split()[1]
        found = {hashed.get(key, key): text.replace(f'"{old}"', f'"{new}"') for key, text in found.items()}
    return {name: json.loads(text) for name, text in sorted(found.items())}


def _ordered(node: Any) -> Any:  # noqa: ANN401 - YAML data
    if isinstance(node, dict):
        return {key: _text(key, _ordered(value)) for key, value in sorted(node.items())}
    if isinstance(node, list):
        return sorted(map(_ordered, node), key=lambda item: json.dumps(item, sort_keys=True))
    return node


def _text(key: str, value: Any) -> Any:  # noqa: ANN401 - YAML data
    return _ordered(yaml.safe_load(value)) if key == "scenario.yaml" else value


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_the_objects_are_those_of_the_overlay(values: Path) -> None:
    name = values.name.removesuffix("-values.yaml")
    chart = comparable(template("--values", values))
    expected = comparable(build(OVERLAYS / name))
    if name == "loadtest":
        # The overlay has the Job alone, and its release the servers, too.
        chart = {key: each for key, each in chart.items() if key in expected}
    assert chart == expected


def test_every_overlay_without_routes_has_values() -> None:
    # The routes of a Gateway are beside the chart: the canary is two releases, and the Inference Gateway has a chart of
    # its own.
    named = {path.name.removesuffix("-values.yaml") for path in VALUES}
    assert named == {path.name for path in OVERLAYS.iterdir() if path.is_dir()} - {"canary", "inference-gateway"}


@pytest.mark.parametrize(
    ("components", "text"),
    [
        ((), ""),
        (("keda",), "autoscaling: {kind: keda, query: %QUERY%}"),
        (("memlock",), "tpu: {memlock: true}"),
        (("bucket",), "models: {bucket: 'gs://BUCKET/models'}"),
        (("bucket", "managed-prometheus", "tls", "credentials"),
         "{models: {bucket: 'gs://BUCKET/models'}, monitoring: {kind: managed-prometheus}, "
         "tls: {secretName: tpuserve-tls}, credentials: {secretName: tpuserve-credentials}}"),
        (("prometheus-operator", "keda", "tls", "credentials"),
         "{autoscaling: {kind: keda, query: %QUERY%}, monitoring: {kind: prometheus-operator}, "
         "tls: {secretName: tpuserve-tls}, credentials: {secretName: tpuserve-credentials}}"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_features_combine_as_components_do(components: tuple[str, ...], text: str, tmp_path: Path) -> None:
    scaled = yaml.safe_load((KUBERNETES / "components/keda/scaledobject.yaml").read_text())
    query = json.dumps(scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert comparable(template(text=text.replace("%QUERY%", query))) == comparable(build_with(components, tmp_path))


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_every_resource_is_valid_for_each_kubernetes(values: Path) -> None:
    for each in template("--values", values, release="other"):
        each["metadata"].pop("annotations", None)
        validate(each)


def test_two_releases_share_no_name_and_no_pod() -> None:
    text = "{models: {bucket: 'gs://b/m'}, loadtest: {scenario: {models: [{model: m}]}}}"
    one, two = template(text=text, release="one"), template(text=text, release="tpuserve-two")
    names = [{(each["kind"], each["metadata"]["name"]) for each in each_release} for each_release in (one, two)]
    assert not names[0] & names[1]
    for release, other in ((one, two), (two, one)):
        pods = [each["spec"]["template"]["metadata"]["labels"] for each in other if each["kind"] == "Deployment"]
        for each in release:
            selector = each.get("spec", {}).get("selector", {})
            if each["kind"] in ("Service", "Deployment", "PodDisruptionBudget"):
                labels = selector.get("matchLabels", selector)
                assert not any(labels.items() <= pod.items() for pod in pods), each["kind"]


def test_values_reach_the_server() -> None:
    text = """
    model: digits
    image: {repository: registry.example.com/server, tag: "2"}
    extraArgs: [--enable_batching, "--rest_api_timeout_in_ms=5"]
    extraEnv: [{name: A, value: "1"}]
    models: {existingClaim: mine}
    imagePullSecrets: [{name: registry}]
    resources: {requests: {cpu: 3}}
    """
    resources = {each["kind"]: each for each in template(text=text)}
    assert "PersistentVolumeClaim" not in resources
    pod = resources["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["image"] == "registry.example.com/server:2"
    assert parse_flags(server["args"])["rest_api_timeout_in_ms"] == 5
    assert {"name": "MODEL_NAME", "value": "digits"} in server["env"]
    assert {"name": "A", "value": "1"} in server["env"]
    assert server["resources"]["requests"]["cpu"] == "3"
    assert server["resources"]["requests"]["memory"] == "2Gi"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "mine", "readOnly": True}} in pod["volumes"]
    assert (violations(pod), excesses(pod)) == ([], [])


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("replica: {min: 1}", "replica"),
        ("tpu: {enabled: true, accelerator: tpu-v6e-podslice}", "accelerator"),
        ("tpu: {enabled: true, chips: 3}", "chips"),
        ("autoscaling: {kind: vpa}", "kind"),
        ("resources: {limits: {cpu: 1}}", "cpu"),
        ("replicas: {min: 0}", "min"),
        ("models: {bucket: my-bucket}", "bucket"),
    ],
)
def test_wrong_values_are_refused_by_the_schema(text: str, part: str) -> None:
    done = run_helm("template", "tpuserve", CHART, "--values=-", stdin=text)
    assert done.returncode == 1
    assert "values don't meet the specifications of the schema" in done.stderr
    assert part in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replicas: {min: 10}", "replicas.max is 8 and replicas.min is 10. Set replicas.max to at least replicas.min."),
        ("{replicas: {max: 1}, autoscaling: {kind: keda}}", "replicas.max is 1 and replicas.min is 2."),
        ("{loadtest: {scenario: {load: {rate: 1}}}, tls: {secretName: a}}", "without TLS and without a key"),
        ("{loadtest: {scenario: {load: {rate: 1}}}, credentials: {secretName: a}}", "without TLS and without a key"),
    ],
)
def test_values_that_contradict_each_other_are_refused(text: str, message: str) -> None:
    done = run_helm("template", "tpuserve", CHART, "--values=-", stdin=text)
    assert done.returncode == 1
    assert message in done.stderr


def test_a_fixed_number_of_servers_needs_no_maximum() -> None:
    resources = {each["kind"]: each for each in template(text="{replicas: {min: 10}, autoscaling: {kind: none}}")}
    assert resources["Deployment"]["spec"]["replicas"] == 10


def test_the_schema_has_the_accelerators_of_the_table() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    accelerators = [family.gke_accelerator for family in FAMILIES.values() if family.gke_accelerator]
    assert schema["properties"]["tpu"]["properties"]["accelerator"]["enum"] == accelerators
    assert schema["properties"].keys() - yaml.safe_load((CHART / "values.yaml").read_text()).keys() == {"global"}


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES.values() if family.machines], ids=lambda each: each.name
)
def test_each_slice_of_one_host_fits(family: Any) -> None:  # noqa: ANN401 - a TpuFamily
    for machine in family.machines:
        (chips,) = set(family.host_chips(machine.grid)[:1])
        tpu = {"enabled": True, "accelerator": family.gke_accelerator, "topology": machine.grid, "chips": chips}
        resources = template(text=yaml.safe_dump({"tpu": tpu}))
        assert check_manifest(yaml.safe_dump_all(resources), "-") == ["Deployment tpuserve"]


def test_helm_lint_finds_nothing() -> None:
    done = run_helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr
