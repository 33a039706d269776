"""The templates of the Helm chart, from the Kustomize base and its components (decision 0108).

`python -m deploy.helm.chart` writes them. Each feature is a component or a patch of an overlay, and a condition on the
chart's values.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.helm.merge import Build, Features, Merger, Node, Places

ROOT: Final = Path(__file__).parents[2]
CHART: Final = Path(__file__).parent / "tpuserve"
_KUBERNETES: Final = ROOT / "deploy/kubernetes"
_KUBECTL: Final = Path(sys.executable).with_name("kubectl")
_HEADER: Final = "# Written by `python -m deploy.helm.chart` from deploy/kubernetes.\n"

_DEPLOYMENT = "Deployment[tpuserve]"
_POD = f"{_DEPLOYMENT}.spec.template.spec"
_TRIGGER = "ScaledObject[tpuserve].spec.triggers[prometheus].metadata"
_SERVER = f"{_POD}.containers[server]"
_SINGLE_BUDGET: Final = [
    {"op": "remove", "path": "/spec/maxUnavailable"},
    {"op": "add", "path": "/spec/minAvailable", "value": "50%"},
]
# The component for TPUs sets the budget of one server. In the chart, the number of servers decides.
_USUAL_BUDGET: Final = [
    {"op": "remove", "path": "/spec/minAvailable"},
    {"op": "add", "path": "/spec/maxUnavailable", "value": 1},
]


def _on(kind: str, operations: Sequence[Node]) -> Node:
    return {"target": {"kind": kind, "name": "tpuserve"}, "patch": yaml.safe_dump(operations)}


def _without(api_version: str, kind: str, name: str) -> Node:
    resource = {"$patch": "delete", "apiVersion": api_version, "kind": kind, "metadata": {"name": name}}
    return {"patch": yaml.safe_dump(resource)}


@dataclass(frozen=True, slots=True)
class Feature:
    """A condition on the values, and what it adds to a kustomization of the base."""

    condition: str
    components: tuple[str, ...] = ()
    patches: tuple[Node, ...] = ()
    config_map: tuple[str, str] | None = None  # name and key
    fields: Mapping[str, Any] = field(default_factory=dict)


_TPU_PATCH = (_KUBERNETES / "overlays/gke-tpu-v5e/deployment.yaml").read_text(encoding="utf-8")
_CLAIM = [{"op": "replace", "path": "/spec/template/spec/volumes/0/persistentVolumeClaim/claimName", "value": "CLAIM"}]
_NO_SCALER = _without("autoscaling/v2", "HorizontalPodAutoscaler", "tpuserve")
_NO_CLAIM = _without("v1", "PersistentVolumeClaim", "tpuserve-models")
FEATURES: Final[Mapping[str, Feature]] = {
    "bucket": Feature(".Values.models.bucket", ("bucket",)),
    "claim": Feature(".Values.models.existingClaim", patches=(_on("Deployment", _CLAIM), _NO_CLAIM)),
    "config": Feature(
        ".Values.models.config", ("model-config",), config_map=("tpuserve-model-config", "models.config")
    ),
    "tpu": Feature(".Values.tpu.enabled", ("tpu",), ({"patch": _TPU_PATCH}, _on("PodDisruptionBudget", _USUAL_BUDGET))),
    "memlock": Feature(".Values.tpu.memlock", ("memlock",)),
    "single": Feature("lt (int .Values.replicas.min) 2", patches=(_on("PodDisruptionBudget", _SINGLE_BUDGET),)),
    "keda": Feature('eq .Values.autoscaling.kind "keda"', ("keda",)),
    "fixed": Feature(
        'eq .Values.autoscaling.kind "none"',
        patches=(_NO_SCALER,),
        fields={"replicas": [{"name": "tpuserve", "count": 2}]},
    ),
    "operator": Feature('eq .Values.monitoring.kind "prometheus-operator"', ("prometheus-operator",)),
    "managed": Feature('eq .Values.monitoring.kind "managed-prometheus"', ("managed-prometheus",)),
    "tls": Feature(".Values.tls.secretName", ("tls",)),
    "credentials": Feature(".Values.credentials.secretName", ("credentials",)),
    "loadtest": Feature(".Values.loadtest.scenario", ("loadtest",), config_map=("tpuserve-loadtest", "scenario.yaml")),
}
# Each feature alone, and the pairs that change the same resource.
BUILDS: Final[tuple[Features, ...]] = (
    frozenset(),
    *(frozenset({name}) for name in FEATURES),
    *(frozenset({one, two}) for one in ("operator", "managed") for two in ("tls", "credentials")),
    frozenset({"tpu", "bucket"}),
    frozenset({"managed", "keda"}),
)

# Scalars by path, and the template of the chart's value.
_REPLACED: Final[Mapping[str, str]] = {
    f"{_SERVER}.image": '{{ include "tpuserve.image" . }}',
    f"{_SERVER}.env[MODEL_NAME].value": "{{ .Values.model | quote }}",
    f"{_SERVER}.env[MODEL_BASE_PATH].value": "{{ .Values.models.bucket | quote }}",
    f"{_POD}.nodeSelector.cloud.google.com/gke-tpu-accelerator": "{{ .Values.tpu.accelerator | quote }}",
    f"{_POD}.nodeSelector.cloud.google.com/gke-tpu-topology": "{{ .Values.tpu.topology | quote }}",
    f"{_SERVER}.resources.requests.google.com/tpu": "{{ .Values.tpu.chips | quote }}",
    f"{_SERVER}.resources.limits.google.com/tpu": "{{ .Values.tpu.chips | quote }}",
    f"{_DEPLOYMENT}.spec.replicas": "{{ .Values.replicas.min }}",
    f"{_DEPLOYMENT}.spec.strategy.rollingUpdate.maxSurge": "{{ .Values.rollout.maxSurge }}",
    f"{_DEPLOYMENT}.spec.strategy.rollingUpdate.maxUnavailable": "{{ .Values.rollout.maxUnavailable }}",
    f"{_POD}.volumes[tls].secret.secretName": "{{ .Values.tls.secretName }}",
    f"{_POD}.volumes[credentials].secret.secretName": "{{ .Values.credentials.secretName }}",
    "ServiceMonitor[tpuserve].spec.endpoints[http].authorization.credentials.name": (
        "{{ .Values.credentials.metricsSecretName }}"
    ),
    "PodMonitoring[tpuserve].spec.endpoints[http].authorization.credentials.secret.name": (
        "{{ .Values.credentials.metricsSecretName }}"
    ),
    "HorizontalPodAutoscaler[tpuserve].spec.minReplicas": "{{ .Values.replicas.min }}",
    "HorizontalPodAutoscaler[tpuserve].spec.maxReplicas": '{{ include "tpuserve.maxReplicas" . }}',
    "ScaledObject[tpuserve].spec.minReplicaCount": "{{ .Values.replicas.min }}",
    "ScaledObject[tpuserve].spec.maxReplicaCount": '{{ include "tpuserve.maxReplicas" . }}',
    f"{_TRIGGER}.serverAddress": "{{ .Values.autoscaling.prometheus | quote }}",
    f"{_TRIGGER}.query": '{{ include "tpuserve.demand" . | quote }}',
    f"{_TRIGGER}.threshold": "{{ .Values.autoscaling.threshold | quote }}",
    "PersistentVolumeClaim[tpuserve-models].spec.resources.requests.storage": "{{ .Values.models.size }}",
    "PersistentVolumeClaim[tpuserve-models].spec.accessModes[ReadWriteMany]": "{{ .Values.models.accessMode }}",
    "ConfigMap[tpuserve-model-config].data.models.config": "{{ .Values.models.config | quote }}",
    "ConfigMap[tpuserve-loadtest].data.scenario.yaml": '{{ include "tpuserve.scenario" . | quote }}',
    "Job[tpuserve-loadtest].spec.template.spec.containers[loadtest].image": (
        "{{ .Values.loadtest.image.repository }}:{{ .Values.loadtest.image.tag | default .Chart.AppVersion }}"
    ),
}
# Lists and objects by path, and the values that the chart adds to them.
_EXTENDED: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_SERVER}.args": ("{{- range .Values.extraArgs }}", "- {{ . | quote }}", "{{- end }}"),
    f"{_SERVER}.env": ("{{- with .Values.extraEnv }}", "{{- toYaml . | nindent INDENT }}", "{{- end }}"),
    _POD: (
        "{{- with .Values.imagePullSecrets }}",
        "imagePullSecrets:",
        "{{- toYaml . | nindent INDENT }}",
        "{{- end }}",
    ),
    "ServiceAccount[tpuserve].metadata": (
        "{{- with .Values.serviceAccountAnnotations }}",
        "annotations:",
        "  {{- toYaml . | nindent 4 }}",
        "{{- end }}",
    ),
    "PersistentVolumeClaim[tpuserve-models].spec": (
        "{{- with .Values.models.storageClassName }}",
        "storageClassName: {{ . }}",
        "{{- end }}",
    ),
    # `helm test` creates the Job, waits for it, and fails with it.
    "Job[tpuserve-loadtest].metadata": (
        "annotations:",
        "  helm.sh/hook: test",
        "  helm.sh/hook-delete-policy: before-hook-creation",
    ),
}
_FULLNAME: Final = '{{ include "tpuserve.fullname" . }}'
# Fields whose value is the name of a resource, or a label that selects its pods.
_NAMES: Final = re.compile(
    r"(metadata\.name|app\.kubernetes\.io/name|serviceAccountName|scaleTargetRef\.name|claimName|configMap\.name)$"
)
_RESOURCES: Final = re.compile(
    re.escape(f"{_SERVER}.resources.") + r"(requests|limits)\.(cpu|memory|ephemeral-storage)"
)


def _replace(path: str, value: Node) -> str | None:
    """Return the template of a scalar, or None if no value of the chart changes it."""
    if path in _REPLACED:
        return _REPLACED[path]
    if value == "CLAIM":
        return "{{ .Values.models.existingClaim }}"
    if path.endswith("app.kubernetes.io/managed-by"):
        return "{{ .Release.Service }}"
    if found := _RESOURCES.fullmatch(path):
        return f'{{{{ dig "{found[1]}" "{found[2]}" "{value}" .Values.resources | quote }}}}'
    is_name = _NAMES.search(path) and isinstance(value, str) and value.startswith("tpuserve")
    is_address = isinstance(value, str) and value.startswith(("--grpc=tpuserve:", "--rest=http://tpuserve:"))
    if is_name or is_address:
        return re.sub(r"^(--[a-z]+=(?:http://)?)?tpuserve", lambda prefix: (prefix[1] or "") + _FULLNAME, value)
    return None


def _extend(path: str, indent: int) -> Sequence[str]:
    """Return the lines that add values of the chart to a list or an object."""
    lines = _EXTENDED.get(path, ())
    return [" " * indent + line.replace("INDENT", str(indent)) for line in lines]


def build(features: Features) -> Iterator[Node]:
    """Yield the resources that kubectl builds of the base with these features."""
    chosen = [feature for name, feature in FEATURES.items() if name in features]
    # Its patches need the resources of the monitoring, so the order is that of the features.
    with tempfile.TemporaryDirectory() as folder:
        kustomization: dict[str, Any] = {
            "resources": [os.path.relpath(_KUBERNETES / "base", folder)],
            "components": [
                os.path.relpath(_KUBERNETES / "components" / name, folder)
                for each in chosen
                for name in each.components
            ],
            "patches": [patch for each in chosen for patch in each.patches],
            "configMapGenerator": [
                {"name": each.config_map[0], "literals": [f"{each.config_map[1]}=VALUE"]}
                for each in chosen
                if each.config_map
            ],
            "generatorOptions": {"disableNameSuffixHash": True},
        }
        for each in chosen:
            kustomization |= each.fields
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
        built = subprocess.run([_KUBECTL, "kustomize", folder], capture_output=True, text=True, check=True)
    yield from yaml.safe_load_all(built.stdout)


def chart_files() -> Mapping[str, str]:
    """Return the generated files of the chart by name: templates, and resources that contain Prometheus' templates."""
    found: dict[tuple[str, str], list[Build]] = {}
    for features in BUILDS:
        for resource in build(features):
            key = (resource["kind"], resource["metadata"]["name"])
            found.setdefault(key, []).append(Build(features, resource))
    merger = Merger({name: feature.condition for name, feature in FEATURES.items()}, Places(_replace, _extend))
    files = {}
    for (kind, name), builds in found.items():
        file = f"{kind.lower()}{name.removeprefix('tpuserve')}.yaml"
        if "{{" in yaml.safe_dump(builds[0].value):
            files[f"files/{file}"] = _HEADER + yaml.safe_dump(builds[0].value, sort_keys=False, width=110)
            included = [Build(each.features, {"FILE": file}) for each in builds]
            text = merger.template(f"{kind}[{name}]", included, BUILDS)
            text = text.replace(f"FILE: {file}", f'{{{{ .Files.Get "files/{file}" }}}}')
        else:
            text = merger.template(f"{kind}[{name}]", builds, BUILDS)
        files[f"templates/{file}"] = _HEADER + text
    return files


def main() -> None:
    """Write the generated files, and remove those of earlier versions."""
    shutil.rmtree(CHART / "files", ignore_errors=True)
    for path in (CHART / "templates").glob("*.yaml"):
        path.unlink()
    for name, text in chart_files().items():
        (CHART / name).parent.mkdir(parents=True, exist_ok=True)
        (CHART / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
