"""Comparison of the pods in Kubernetes manifests with the table of TPUs on GKE."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tpuserve_exporter.errors import ManifestUnfit, SourceUnreadable
from tpuserve_exporter.options.tpu import FAMILIES, TpuFamily, count_chips

ACCELERATOR: Final = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
RESOURCE: Final = "google.com/tpu"

_Object = Mapping[str, Any]  # YAML data


@dataclass(frozen=True, slots=True)
class TpuPod:
    """A pod that requests TPUs. `name` is the kind and the name of its resource."""

    name: str
    spec: _Object

    def problems(self) -> Iterator[str]:
        """Yield each contradiction to the table with the value to write instead."""
        labels = self.spec.get("nodeSelector") or {}
        chips = self._chips("limits")
        if chips is None or self._chips("requests") not in (None, chips):
            yield f"its limits and requests of {RESOURCE} must be the same positive number"
        if not any(_tolerates(one) for one in self.spec.get("tolerations") or ()):
            yield f"no toleration of the taint {RESOURCE}. Add key {RESOURCE}, operator Exists, effect NoSchedule"
        family = next((one for one in FAMILIES.values() if one.gke_accelerator == labels.get(ACCELERATOR, "-")), None)
        if family is None:
            known = ", ".join(one.gke_accelerator for one in FAMILIES.values() if one.gke_accelerator)
            yield f"nodeSelector {ACCELERATOR} is {labels.get(ACCELERATOR, 'missing')}. Use one of {known}"
            return
        yield from _check_topology(family, str(labels.get(TOPOLOGY, "")), chips)

    def _chips(self, kind: str) -> int | None:
        """Return the sum of all containers, or None without one or with a value that is not a positive number."""
        values = [((each.get("resources") or {}).get(kind) or {}).get(RESOURCE) for each in _containers(self.spec)]
        named = [str(value) for value in values if value is not None]
        return sum(map(int, named)) or None if all(value.isdecimal() for value in named) else None


def _check_topology(family: TpuFamily, grid: str, chips: int | None) -> Iterator[str]:
    expected = family.host_chips(grid)
    if not expected:
        one_host = ", ".join(machine.grid for machine in family.machines)
        yield (
            f"nodeSelector {TOPOLOGY} is {grid or 'missing'}, and {family.name} has no such slice. Use {one_host} for "
            "one host"
        )
    elif chips is not None and chips not in expected:
        numbers = " or ".join(map(str, expected))
        hosts = count_chips(grid) // expected[-1]
        whole = "the slice" if hosts == 1 else f"each of its {hosts} hosts"
        yield f"{RESOURCE} is {chips}, and {whole} of {family.name}:{grid} has {numbers} chips. Request all of them"


def check_manifest(text: str | bytes, name: str) -> list[str]:
    """Return the names of the pods that request TPUs in the YAML documents of the file `name`.

    Raises:
        SourceUnreadable: the file is not YAML, or no pod in it requests a TPU.
        ManifestUnfit: a pod contradicts the table of TPUs. The message has all reasons.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise SourceUnreadable(f"{name} is not YAML: {error}") from error
    pods = [pod for document in documents for pod in _find_pods(document, "manifest")]
    if not pods:
        raise SourceUnreadable(
            f"{name} has no pod with a TPU. Check the whole manifest: kubectl kustomize DIR | "
            "tpuserve deploy render --validate -"
        )
    problems = [f"{pod.name}: {problem}" for pod in pods for problem in pod.problems()]
    if problems:
        raise ManifestUnfit(f"{name} does not fit GKE's TPUs:\n  " + "\n  ".join(problems))
    return [pod.name for pod in pods]


def _find_pods(node: object, name: str) -> Iterator[TpuPod]:
    """Yield the PodSpecs with TPUs below a node, in any kind of resource."""
    if isinstance(node, list):
        for each in node:
            yield from _find_pods(each, name)
    if not isinstance(node, Mapping):
        return
    if "kind" in node and isinstance(node.get("metadata"), Mapping):
        name = f"{node['kind']} {node['metadata'].get('name', '')}".strip()
    if _requests_tpu(node):
        yield TpuPod(name, node)
        return
    for value in node.values():
        yield from _find_pods(value, name)


def _requests_tpu(node: _Object) -> bool:
    selector = node.get("nodeSelector")
    is_selected = isinstance(selector, Mapping) and {ACCELERATOR, TOPOLOGY} & selector.keys()
    requests = (each.get("resources") or {} for each in _containers(node))
    return bool(is_selected) or any(RESOURCE in (kind or {}) for each in requests for kind in each.values())


def _containers(spec: _Object) -> list[_Object]:
    """Return the containers of a PodSpec, or the model of KServe's predictor, which has one container's fields."""
    found = spec.get("containers") or [spec.get("model")]
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _tolerates(toleration: _Object) -> bool:
    is_key = toleration.get("key") in (RESOURCE, None)
    is_value = toleration.get("operator") == "Exists" or toleration.get("value") == "present"
    return is_key and is_value and toleration.get("effect") in ("NoSchedule", None)
