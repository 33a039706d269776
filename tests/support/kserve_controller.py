"""An InferenceService in Knative mode, with what KServe's and Knative's controllers do to its traffic and status.

No registry has either controller. This one follows KServe's `ksvc_reconciler.go` (the traffic targets) and
`inference_service_status.go` (`PropagateStatus`: revisions, and the return after all traffic). A change of the
predictor makes a revision, whose server `start` returns. It knows nothing of pods, transformers and scaling to zero.
https://github.com/kserve/kserve/tree/master/pkg/controller/v1beta1/inferenceservice/reconcilers/knative
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes_api import ObjectServer

FIELD = "canaryTrafficPercent"
TAG_ROUTING = "serving.kserve.io/enable-tag-routing"


@dataclass
class InferenceServiceServer(ObjectServer):
    """The object and its revisions. `start` returns the address of a predictor's server.

    A paused controller ignores changes, until `reconcile`. `broken` selects predictors whose revisions never get ready.
    """

    spec: dict[str, Any]
    url: str
    start: Callable[[dict[str, Any]], str]
    resource = "inferenceservices"
    prefix = "apis/serving.kserve.io/v1beta1"
    annotations: dict[str, str] = field(default_factory=lambda: {TAG_ROUTING: "true"})
    paused: bool = False
    broken: Callable[[dict[str, Any]], bool] = lambda predictor: False
    # Called with the addresses of the revisions and their shares after each change of the traffic.
    on_traffic: Callable[[dict[str, int]], None] = lambda shares: None

    def __post_init__(self) -> None:
        self._servers: dict[str, str] = {}  # by revision
        self._template: dict[str, Any] = {}
        self._created = self._ready = self._rolled_out = self._previous = ""
        self._traffic: list[dict[str, Any]] = []
        self.reconcile()

    @property
    def percent(self) -> int | None:
        found: int | None = self.spec["predictor"].get(FIELD)
        return found

    @property
    def shares(self) -> dict[str, int]:
        """The percent of the traffic by the address of a revision."""
        shares: dict[str, int] = {}
        for target in self._traffic:
            address = self._servers[target["revisionName"]]
            shares[address] = shares.get(address, 0) + target["percent"]
        return shares

    def change(self, spec: dict[str, Any]) -> None:
        """Change the spec as another client does."""
        with self.lock:
            self.spec, self.version = deepcopy(spec), self.version + 1
            if not self.paused:
                self.reconcile()

    def touch(self) -> None:
        """Change only the resource version, as an update of the status does."""
        with self.lock:
            self.version += 1

    def replace(self, document: dict[str, Any]) -> None:
        self.change(document["spec"])

    def reconcile(self) -> None:
        """Bring the revisions and the traffic to the spec. Each pass changes the status, as in the controller."""
        with self.lock:
            while self._pass():
                self.version += 1
        self.on_traffic(self.shares)

    def _pass(self) -> bool:
        before = (self._created, self._ready, self._rolled_out, self._previous, deepcopy(self._traffic))
        template = {name: value for name, value in self.spec["predictor"].items() if name != FIELD}
        if template != self._template:
            self._template = template
            self._created = f"{self.name}-predictor-{len(self._servers) + 1:05d}"
            self._servers[self._created] = "" if self.broken(template) else self.start(template)
            if not self.broken(template):
                self._ready = self._created
        tag = {"tag": "latest"} if self.annotations.get(TAG_ROUTING) == "true" else {}
        latest: dict[str, Any] = {"latestRevision": True, "revisionName": self._ready, "percent": 100, **tag}
        self._traffic = [latest]
        if self.percent is not None and self._rolled_out:
            latest["percent"] = self.percent
            if self.percent < 100:
                rest = {"revisionName": self._rolled_out, "latestRevision": False, "tag": "prev"}
                self._traffic.append({**rest, "percent": 100 - self.percent})
        self._propagate(latest["percent"])
        return before != (self._created, self._ready, self._rolled_out, self._previous, self._traffic)

    def _propagate(self, percent: int) -> None:
        if self._rolled_out != self._ready:
            if percent == 100:
                self._previous, self._rolled_out = self._rolled_out, self._ready
            return
        of_latest = sum(target["percent"] for target in self._traffic if target["revisionName"] == self._ready)
        # The latest revision had all traffic, and goes back to the one before.
        if self._ready == self._created and percent < 100 and of_latest == 100 and self._previous:
            self._rolled_out = self._previous

    def get(self) -> dict[str, Any]:
        with self.lock:
            is_ready = self._created == self._ready
            condition = {"type": "Ready", "status": "True" if is_ready else "False"}
            if not is_ready:
                condition |= {"reason": "RevisionFailed", "message": f"Revision {self._created} failed to load"}
            predictor = {
                "latestCreatedRevision": self._created,
                "latestReadyRevision": self._ready,
                "latestRolledoutRevision": self._rolled_out,
                "previousRolledoutRevision": self._previous,
                "url": self.url,
                "traffic": [self._with_url(target) for target in self._traffic],
            }
            return {
                "apiVersion": "serving.kserve.io/v1beta1",
                "kind": "InferenceService",
                "metadata": {**self.metadata, "annotations": dict(self.annotations)},
                "spec": deepcopy(self.spec),
                "status": {"conditions": [condition], "components": {"predictor": predictor}},
            }

    def _with_url(self, target: dict[str, Any]) -> dict[str, Any]:
        address = self._servers[target["revisionName"]]
        return {**target, "url": f"http://{address}"} if "tag" in target else dict(target)
