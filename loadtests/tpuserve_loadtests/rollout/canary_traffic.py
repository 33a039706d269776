"""The traffic between two revisions of a KServe InferenceService in Knative mode, and its update.

A revision has one version and no labels, so a rollout moves the field `canaryTrafficPercent`. The controller's status
decides whether a change is in force: its `observedGeneration` is that of Knative's Service, so it proves nothing.
https://kserve.github.io/website/docs/model-serving/predictive-inference/rollout-strategies/canary
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.moves import Move, NotMoved, Standing, Wording
from tpuserve_loadtests.rollout.programs import Conflict, KubernetesObject
from tpuserve_loadtests.rollout.replicas import Look, ReplicaState, wait_until_agreed

KEY: Final = "traffic"
# The shares of the new revision that a rollout sets in turn, in percent.
_SHARES: Final = (10, 100)
_FIELD: Final = "canaryTrafficPercent"
_TAG_ROUTING: Final = "serving.kserve.io/enable-tag-routing"
_LOOK_S: Final = 0.5
# Attempts to write while the controller changes the status, and with it the resource version.
_WRITES: Final = 8
_STANDING: Final = "traffic of the new revision: {0.in_file} in the spec, {0.server} in the status"


def percent_text(percent: int | None) -> str:
    return "unknown" if percent is None else f"{percent} %"


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision, and the gRPC address of its tag."""

    name: str
    address: str


class Traffic:
    """The traffic of an InferenceService between its live and its new revision. Belongs to one thread."""

    wording = Wording(
        title="Traffic",
        columns=("traffic", "before", "spec", "status"),
        unmoved="no traffic was moved",
        back="traffic was moved back",
        advice=f"Set {_FIELD} of the InferenceService",
        check=("revision", "check the traffic in the status, and the versions of responses"),
        value=percent_text,
    )

    def __init__(
        self,
        namespace: str,
        name: str,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda words: None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Read the InferenceService. Its status may take `patience_s` seconds to show a change.

        A move stops to wait when `interrupted`, but a return does not. Raises BadConfig if the InferenceService is not
        ready for a rollout, with the reason.
        """
        path = f"/apis/serving.kserve.io/v1beta1/namespaces/{quote(namespace, safe='')}/inferenceservices"
        self._object = KubernetesObject(f"{path}/{quote(name, safe='')}")
        self._shown = f"InferenceService {namespace}/{name}"
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._interrupted = interrupted
        document = self._object.read()
        self._spec: Mapping[str, Any] = document["spec"]
        self.percent = _checked_percent(document)
        status = _predictor_status(document)
        self.address = _address(status.get("url"))
        self.new, self.live = (_tagged(status, tag) for tag in ("latest", "prev"))
        if self.new.name == self.live.name:
            raise BadConfig(f"both tags are the revision {self.new.name}. Deploy the new version with {_FIELD}: 0")
        self._object.replace(document, dry_run=True)
        look = self.look({KEY: self.percent})
        if not look.agrees:
            raise BadConfig(f"the status differs from the spec: {look.lacking}")

    def moves(self) -> list[Move]:
        """Return the moves from the current share to all traffic."""
        found, now = [], self.percent
        for then in _SHARES:
            if now < then:
                words = f"from {percent_text(now)} to {percent_text(then)}"
                found.append(Move(f"traffic {percent_text(then)}", KEY, now, then, words))
                now = then
        return found

    def move(self, changes: Mapping[str, int | None]) -> None:
        """Set the share of the new revision, and block until the status shows it, at most the patience.

        With all traffic, the field is removed. Raises NotMoved if the status does not show it, with the field restored,
        or if another process changed the spec.
        """
        before = self._spec
        try:
            self._write(changes[KEY], only=before)
        except BadConfig as error:
            raise NotMoved(f"{self}: {error}") from None
        look = self.wait(changes)
        if look.agrees:
            return
        try:
            self._write(before["predictor"].get(_FIELD))
            again = ""
        except BadConfig as error:
            again = f"; the traffic could not be restored: {error}"
        raise NotMoved(f"the traffic did not change: {look.lacking}{again}. {self.standings([KEY])[0][0]}")

    def restore(self, values: Mapping[str, int | None]) -> None:
        """Set the share in the current spec, and block until the status shows it. Raises NotMoved."""
        try:
            self._write(values[KEY])
        except BadConfig as error:
            raise NotMoved(f"{self}: {error}. {self.standings([KEY])[0][0]}") from None
        look = self._wait(lambda: self._look(values, needs_ready=False), lambda: False)
        if not look.agrees:
            raise NotMoved(f"the traffic did not change: {look.lacking}. {self.standings([KEY])[0][0]}")

    def look(self, values: Mapping[str, int | None]) -> Look:
        """Return whether the InferenceService is ready, and its status has the share of both revisions. Blocks."""
        return self._look(values, needs_ready=True)

    def wait(self, values: Mapping[str, int | None]) -> Look:
        """Block until `look` agrees, at most the patience, or until `interrupted`."""
        return self._wait(lambda: self.look(values), self._interrupted)

    def standings(self, keys: Iterable[str]) -> tuple[Sequence[Standing], Sequence[ReplicaState]]:
        """Return the share in the spec and in the status. Blocks."""
        try:
            document = self._object.read()
        except BadConfig as error:
            in_spec = in_status = f"unknown ({error})"
        else:
            in_spec = percent_text(document["spec"]["predictor"].get(_FIELD, 100))
            in_status = percent_text(_shares(document).get(self.new.name, 0))
        return [Standing(key, in_spec, in_status, _STANDING) for key in keys], ()

    def restored_words(self, values: Mapping[str, int | None]) -> str:
        return f"{percent_text(values[KEY])} for the revision {self.new.name}"

    def summary(self, look: Look) -> str:
        """Describe a look that agrees."""
        return f"all traffic at the revision {self.new.name}"

    def __str__(self) -> str:
        return self._shown

    def _write(self, percent: int | None, only: Mapping[str, Any] | None = None) -> None:
        """Write the share. With `only`, raise BadConfig if the spec is another one. Raises BadConfig."""
        for attempt in range(_WRITES):
            document = self._object.read()
            if only is not None and document["spec"] != only:
                raise BadConfig("another process changed the spec during the rollout; it is left unchanged")
            predictor = {name: value for name, value in document["spec"]["predictor"].items() if name != _FIELD}
            if percent not in (None, 100):
                predictor[_FIELD] = percent
            spec = {**document["spec"], "predictor": predictor}
            try:
                self._spec = self._object.replace({**document, "spec": spec})["spec"]
            except Conflict:
                if attempt + 1 == _WRITES:
                    raise
            else:
                return

    def _look(self, values: Mapping[str, int | None], *, needs_ready: bool) -> Look:
        try:
            document = self._object.read()
        except BadConfig as error:
            return Look((ReplicaState(self._shown, problem=str(error), lacks=f"cannot be read: {error}"),))
        shares, percent = _shares(document), values[KEY] or 0
        lacks = [
            f"sends {percent_text(shares.get(revision.name, 0))} to {revision.name}, not {percent_text(wanted)}"
            for revision, wanted in ((self.new, percent), (self.live, 100 - percent))
            if shares.get(revision.name, 0) != wanted
        ]
        if needs_ready and (problem := _unready(document)):
            lacks.append(problem)
        return Look((ReplicaState(self._shown, lacks=", and ".join(lacks)),))

    def _wait(self, look_again: Callable[[], Look], interrupted: Callable[[], bool]) -> Look:
        def report(look: Look) -> None:
            self._on_wait(f"Waiting for KServe, at most {self._patience_s:g} s: it {look.lacking}")

        return wait_until_agreed(look_again, self._patience_s, _LOOK_S, report, interrupted)


def _checked_percent(document: Mapping[str, Any]) -> int:
    """Return the share of the new revision. Raises BadConfig if the object is not ready for a rollout."""
    annotations = document["metadata"].get("annotations") or {}
    if document["spec"].get("canary"):
        raise BadConfig(f"it shares traffic with the field `canary` of Standard mode. Only {_FIELD} is supported")
    if annotations.get(_TAG_ROUTING) != "true":
        raise BadConfig(f'it needs the annotation {_TAG_ROUTING}: "true", which gives each revision an address')
    percent = document["spec"].get("predictor", {}).get(_FIELD)
    if percent is None or percent >= 100:
        raise BadConfig(f"spec.predictor has no {_FIELD} below 100. Deploy the new version with {_FIELD}: 0")
    if problem := _unready(document):
        raise BadConfig(f"it {problem}")
    return int(percent)


def _unready(document: Mapping[str, Any]) -> str:
    """Return why the InferenceService is not ready, or an empty string."""
    status = _predictor_status(document)
    created, ready = (status.get(f"latest{state}Revision") for state in ("Created", "Ready"))
    conditions = {each["type"]: each for each in document.get("status", {}).get("conditions") or []}
    found = conditions.get("Ready", {})
    if created != ready:
        return f"has the revision {created}, which is not ready: {found.get('message') or 'no reason given'}"
    if found.get("status") != "True":
        return f"is not ready: {found.get('message') or found.get('reason') or 'no condition Ready'}"
    return ""


def _predictor_status(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (document.get("status", {}).get("components") or {}).get("predictor") or {}
    return found


def _shares(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the percent of the traffic by revision. A revision may have several targets."""
    shares: dict[str, int] = {}
    for target in _predictor_status(document).get("traffic") or []:
        name = target.get("revisionName", "")
        shares[name] = shares.get(name, 0) + (target.get("percent") or 0)
    return shares


def _tagged(status: Mapping[str, Any], tag: str) -> Revision:
    for target in status.get("traffic") or []:
        if target.get("tag") == tag and target.get("url"):
            return Revision(target["revisionName"], _address(target["url"]))
    raise BadConfig(f"its status has no address of the tag {tag}. A rollout needs KServe's Knative mode")


def _address(url: str | None) -> str:
    """Return the gRPC address of a URL."""
    if not url:
        raise BadConfig("its status has no URL")
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    return f"{'grpcs://' if is_secure else ''}{parts.hostname}:{parts.port or (443 if is_secure else 80)}"
