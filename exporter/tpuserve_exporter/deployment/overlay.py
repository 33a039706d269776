"""The files of a Kustomize overlay, as text with comments that give the reason of each value."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tpuserve_exporter.deployment.names import Image
from tpuserve_exporter.deployment.plan import Plan
from tpuserve_exporter.terms.texts import seconds

# Names in the base: the image, and the resource and container that the patches change.
_IMAGE: Final = "tpuserve-server"
_NAME: Final = "tpuserve"
_CONTAINER: Final = "server"
# GKE may add a node with a TPU during this time.
_NODE_S: Final = 600
# The server's default of --load_timeout_seconds.
_LOAD_TIMEOUT_S: Final = 1800
_WIDTH: Final = 118
_PLAIN: Final = re.compile(r"[A-Za-z./-][A-Za-z0-9_./:@=,-]*", re.ASCII)
# Texts that YAML reads as other types.
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", ".nan", ".inf", "-.inf"})


@dataclass(frozen=True, slots=True)
class Overlay:
    """An overlay of the Kustomize base for TPUs.

    `base` and `component` are the paths of the base and of its component for TPUs, relative to the overlay. Without
    `image`, the image is that of the component. `author` is the program that wrote the overlay.
    """

    plan: Plan
    base: str
    component: str
    image: Image | None
    author: str

    def files(self) -> Mapping[str, str]:
        """Return the text of each file by name. Kustomize needs no other file."""
        return {
            "kustomization.yaml": "\n".join(self._kustomization()) + "\n",
            "deployment.yaml": "\n".join(self._deployment()) + "\n",
        }

    def _kustomization(self) -> Iterator[str]:
        plan = self.plan
        yield from _comment(
            f"Version {plan.version.number} of {plan.model} on {plan.machine.machine_type} with "
            f"{plan.version.topology.name}. Written by {self.author}. To change it, render again with --force, or "
            "write an overlay of this directory."
        )
        yield "apiVersion: kustomize.config.k8s.io/v1beta1"
        yield "kind: Kustomization"
        yield "resources:"
        yield f"- {_scalar(self.base)}"
        yield "components:"
        yield f"- {_scalar(self.component)}"
        if self.image is not None:
            yield from _image(self.image)
        yield "patches:"
        yield "- path: deployment.yaml"
        yield from self._arguments()
        yield from self._replicas()

    def _arguments(self) -> Iterator[str]:
        flags = []
        if self.plan.version.mesh.devices > 1:
            flags.append(f"--mesh={self.plan.version.mesh}")
        if self.plan.needs.startup_s > _LOAD_TIMEOUT_S:
            flags.append(f"--load_timeout_seconds={self.plan.needs.startup_s}")
        if flags:
            yield from _patch("Deployment")
        for flag in flags:
            yield "    - op: add"
            yield "      path: /spec/template/spec/containers/0/args/-"
            yield f"      value: {_scalar(flag)}"

    def _replicas(self) -> Iterator[str]:
        plan, demand = self.plan, self.plan.demand
        if demand is not None:
            capacity = demand.capacity
            yield from _comment(
                f"{demand.for_load} for {demand.rate_per_s:,.10g} requests/s, because one server holds "
                f"{capacity.requests_per_s:,.6g} requests/s with {' and '.join(capacity.terms)}, and "
                f"{demand.headroom} as headroom. The autoscaler adds servers when requests wait."
            )
        yield from _patch("HorizontalPodAutoscaler")
        for name, count in (("min", plan.replicas), ("max", plan.max_replicas)):
            yield "    - op: replace"
            yield f"      path: /spec/{name}Replicas"
            yield f"      value: {count}"
        if plan.replicas > 1:
            yield from _comment("A node drain may evict one server at a time, because there are others.")
            yield from _patch("PodDisruptionBudget")
            yield "    - op: remove"
            yield "      path: /spec/minAvailable"
            yield "    - op: add"
            yield "      path: /spec/maxUnavailable"
            yield "      value: 1"

    def _deployment(self) -> Iterator[str]:
        plan, machine, needs = self.plan, self.plan.machine, self.plan.needs
        sizes = ", ".join(map(str, plan.version.batch_sizes))
        batches = f" The server takes the batch sizes from the manifest: {sizes}. All of them fit." if sizes else ""
        yield from _comment(f"Values of this model and its TPU. The base and the component have the others.{batches}")
        yield "apiVersion: apps/v1"
        yield "kind: Deployment"
        yield "metadata:"
        yield f"  name: {_NAME}"
        yield "spec:"
        yield from _comment(
            f"{needs.startup_s} s to start ({seconds(needs.process_s)} for the process, {seconds(needs.compile_s)} for "
            f"compilation, {seconds(needs.read_s)} to read the version), and {_NODE_S} s in which GKE may add a node.",
            2,
        )
        yield f"  progressDeadlineSeconds: {needs.startup_s + _NODE_S}"
        yield "  template:"
        yield "    spec:"
        yield from _comment(f"Nodes of type {machine.machine_type}.", 6)
        yield "      nodeSelector:"
        yield f"        cloud.google.com/gke-tpu-accelerator: {machine.accelerator}"
        yield f'        cloud.google.com/gke-tpu-topology: "{machine.grid}"'
        yield "      containers:"
        yield f"      - name: {_CONTAINER}"
        yield "        env:"
        yield "        - name: MODEL_NAME"
        yield f"          value: {_scalar(plan.model)}"
        yield "        resources:"
        for kind, size_gib in (("requests", needs.request_gib), ("limits", needs.limit_gib)):
            yield f"          {kind}:"
            yield f"            memory: {size_gib}Gi"
            yield f'            google.com/tpu: "{machine.chips}"'


def _image(image: Image) -> Iterator[str]:
    yield "images:"
    yield f"- name: {_IMAGE}"
    parts = {"newName": image.name, "newTag": image.tag, "digest": image.digest}
    for name, value in parts.items():
        if value is not None:
            yield f"  {name}: {_scalar(value)}"


def _patch(kind: str) -> Iterator[str]:
    yield f"- target: {{kind: {kind}, name: {_NAME}}}"
    yield "  patch: |"


def _comment(text: str, indent: int = 0) -> Iterator[str]:
    """Yield comment lines that fit the width of the repository's YAML."""
    prefix = f"{' ' * indent}# "
    yield from textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)


def _scalar(text: str) -> str:
    """Return a string as YAML, quoted unless it is certainly a plain string."""
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not text.endswith((":", "-"))
    return text if is_plain else json.dumps(text, ensure_ascii=False)
