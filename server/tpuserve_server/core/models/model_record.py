"""ModelRecord: the state of one model and its versions in the registry. The registry's lock guards all of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tpuserve_server.core.batching.cost_model import CostModel, CurveSnapshot
from tpuserve_server.core.models.loader import AspiredVersion, Loaded
from tpuserve_server.core.terms.errors import ServingError, counted
from tpuserve_server.core.terms.types import LoadProgress, Pending, ServableId, State, VersionStatus

# Ended versions kept in a model's status. TensorFlow Serving keeps all of them forever (issue 1488).
_MAX_ENDED = 32
# States that a later one follows without a request.
_CHANGING: Final = frozenset({State.START, State.LOADING, State.UNLOADING})
# The state of a version that loads on demand, for people.
NOT_LOADED: Final = "not loaded: the next request for the model loads it"


@dataclass(slots=True, eq=False)
class VersionRecord:
    """One version.

    `waits` is the reason for a pending retry of a failed load, or empty. The status has others too. `remark` is for the
    status: what happened to the record of this version before. `loading_since_s` is the monotonic time at which its
    load began.
    """

    aspired: AspiredVersion
    is_aspired: bool = True
    state: State = State.START
    error: ServingError | None = None
    loaded: Loaded | None = None
    handles: int = 0
    waits: str = ""
    remark: str = ""
    loading_since_s: float | None = None

    def status(self) -> VersionStatus:
        """Return the status that clients see."""
        waits = self.waits or self._why_unloading() or self.why_hung() or (self.loaded.refuses() if self.loaded else "")
        notes: tuple[str, ...] = tuple(filter(None, (waits, self.remark)))
        if self.loaded:
            notes = (*notes, *self.loaded.notes, *describe_costs(self.loaded.costs))
        return VersionStatus(
            servable=self.aspired.servable,
            state=self.state,
            error=f"{self.error.message}{self._next_try()}" if self.error else "",
            error_code=self.error.code if self.error else 0,
            notes=notes,
            waits=waits,
        )

    def why_hung(self) -> str:
        """Return for how long the version's run hangs, for people, or "" if none does."""
        hung_s = self.loaded.hung_s() if self.loaded is not None else 0.0
        return f"a run has taken {hung_s:.0f} s and hangs (--run_timeout_seconds)" if hung_s else ""

    def _next_try(self) -> str:
        next_try = self.aspired.next_try(self.error) if self.error and self.is_aspired else ""
        return f" ({next_try})" if next_try else ""

    def _why_unloading(self) -> str:
        if self.state is not State.UNLOADING:
            return ""
        if self.handles:
            return f"unloads after its last {self.handles} request{'s' if self.handles > 1 else ''}"
        hung = self.why_hung()
        return f"unloads after the model's last run{f': {hung}' if hung else '; a run that hangs keeps it in memory'}"


@dataclass(slots=True, eq=False)
class ModelRecord:
    """One model.

    `is_configured` is False after its removal, while its versions unload or remain in its status. `is_awaited`: the
    server is not ready without it. `wanted` is the latest report of the source, or None before the first, and after
    `expect_report`. `labels` are those that requests may use. `pending` holds labels that take effect when their
    version is AVAILABLE. `arriving` holds the missing parts in its base path. `is_settled`: the start of the model has
    ended, as `settle_start` describes.

    `loads_on_demand`: its versions load at its first request, and may unload while nobody uses them. Until then, and
    after that, `is_demanded` is False. `is_warming` is True from then until all of them serve or have failed. `used_s`
    is the monotonic time of its last request.
    """

    is_awaited: bool = False
    is_configured: bool = True
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    latest: VersionRecord | None = None
    wanted: Mapping[int, AspiredVersion] | None = None
    labels: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    arriving: Pending = field(default_factory=Pending)
    is_settled: bool = False
    loads_on_demand: bool = False
    is_demanded: bool = False
    is_warming: bool = False
    used_s: float = 0.0

    @property
    def is_dormant(self) -> bool:
        """Whether its versions stay out of memory until the next request."""
        return self.loads_on_demand and not self.is_demanded

    @property
    def is_listed_on_demand(self) -> bool:
        """Whether the server is ready for requests that load it: it has a version to load."""
        return self.loads_on_demand and bool(self.wanted)

    def statuses(self, name: str) -> list[VersionStatus]:
        """Return every version, newest first. A version that is not complete is in START, with what it lacks."""
        known = {number: version.status() for number, version in self.versions.items()}
        if self.is_dormant:
            why = self.why_postponed()
            waits = f"{NOT_LOADED} (the last load failed: {why})" if why else NOT_LOADED
            known.update(
                (number, replace(status, waits=waits, notes=(waits,)))
                for number, status in known.items()
                if status.state is State.START
            )
        for number, lacks in self.arriving.versions.items():
            waits = f"not complete yet: {lacks}"
            known.setdefault(number, VersionStatus(ServableId(name, number), State.START, notes=(waits,), waits=waits))
        return [known[number] for number in sorted(known, reverse=True)]

    def aspire(self, wanted: Mapping[int, AspiredVersion]) -> None:
        """Set the versions that should be served, and forget versions that ended long ago."""
        for number, version in list(self.versions.items()):
            if number not in wanted and version.state is State.START:
                del self.versions[number]
            elif number in wanted:
                self._request_again(number, version, wanted[number])
            else:
                version.is_aspired = False
        for number in wanted.keys() - self.versions.keys():
            self.versions[number] = VersionRecord(wanted[number])
        self.wanted = wanted
        self._forget_old()
        self.settle_warming()

    def remove(self) -> None:
        """Mark the model as no longer configured. None of its versions is wanted, and it loses its labels."""
        self.aspire({})
        self.is_configured = self.is_awaited = self.is_demanded = self.is_warming = False
        self.wanted = None
        self.arriving = Pending()
        self.labels.clear()
        self.pending.clear()

    def expect_report(self) -> None:
        """Forget the source's last report, so that `progress` waits for the next."""
        self.wanted = None
        self.arriving = Pending()

    def retry(self, only: int | None = None) -> None:
        """Start every wanted version again that has failed for good, or only this one.

        The server stays ready without a model that has failed before.
        """
        for number, version in self.versions.items():
            if only not in (None, number):
                continue
            if version.is_aspired and version.state is State.END and version.error is not None:
                self.is_awaited = False
                self.versions[number] = VersionRecord(version.aspired)

    def assign_labels(self, labels: Mapping[str, int], *, even_if_unavailable: bool) -> None:
        """Replace all labels. A label whose version is not AVAILABLE keeps its old version until the new one is.

        With `even_if_unavailable` a new label takes effect without waiting.
        """
        before = self.labels
        self.pending = {
            label: number
            for label, number in labels.items()
            if not self.is_available(number) and not (even_if_unavailable and before.get(label, number) == number)
        }
        self.labels = {label: number for label, number in labels.items() if label not in self.pending}
        self.labels.update((label, before[label]) for label in self.pending.keys() & before.keys())

    def settle(self, *, is_closing: bool) -> None:
        """Update the latest version, pending labels, and versions to start again. Called after each change of state."""
        serving = [number for number, version in self.versions.items() if version.state is State.AVAILABLE]
        self.latest = self.versions[max(serving)] if serving else None
        for label in [label for label, number in self.pending.items() if number in serving]:
            self.labels[label] = self.pending.pop(label)
        for number, version in self.versions.items():
            # It was wanted again during its unload.
            if version.is_aspired and version.state is State.END and version.error is None and not is_closing:
                self.versions[number] = VersionRecord(version.aspired)
        self.settle_warming()

    def settle_warming(self) -> None:
        """End the time of `is_warming` if every wanted version serves or has failed."""
        wanted = [version for version in self.versions.values() if version.is_aspired]
        if self.is_warming and self.wanted is not None:
            self.is_warming = any(version.state in _CHANGING and not version.waits for version in wanted)

    def settle_start(self) -> str:
        """Return what the start of this model waits for, for people, or "" once and for all when it has ended.

        Requests for every version that the policy chose, and for every label, then get their final outcome: each
        version serves or its load has failed at least once, and the labels of versions that serve have taken effect.
        Versions whose files are still being copied delay it only if a label refers to them, and those that load on
        demand do not.
        """
        waits = "" if self.is_settled else self._describe_start()
        self.is_settled = not waits
        return waits

    def give_up(self, number: int, error: ServingError, *, is_closing: bool) -> None:
        """End a version whose unload does not end. If it is wanted again, it gets another record."""
        version = self.versions[number]
        version.state, version.error = State.END, error
        if version.is_aspired and not is_closing:
            self.versions[number] = VersionRecord(version.aspired, remark=error.message)
        self.settle(is_closing=is_closing)

    def is_available(self, number: int) -> bool:
        """Return whether the server answers requests for this version."""
        return number in self.versions and self.versions[number].state is State.AVAILABLE

    def is_unread(self) -> bool:
        """Return whether no version is known, because the source has not reported on the base path yet."""
        return self.is_configured and not self.versions and self.wanted is None and not self.arriving.reason

    def is_arriving(self) -> bool:
        """Return whether a later request may succeed: no version is known yet, or one is changing state."""
        states = {version.state for version in self.versions.values()}
        return self.is_configured and (not states or not states.isdisjoint(_CHANGING))

    def demand(self, now_s: float) -> None:
        """Want the versions in memory. The manager loads those that are not."""
        self.is_warming = self.is_warming or self.is_dormant
        self.is_demanded, self.used_s = True, now_s

    def comes_on_demand(self) -> bool:
        """Return whether a request that waits gets an answer: the versions load at a request, or are loading."""
        is_coming = self.loads_on_demand and (self.is_warming or self.is_dormant)
        return is_coming and self.is_configured and not self.arriving.reason and self.wanted != {}

    def postpone(self, number: int, error: ServingError) -> bool:
        """Return a version whose load failed to START, for the next request. See `ModelRegistry.postponed`."""
        version = self.versions[number]
        others = [other for other in self.versions.values() if other is not version and other.is_aspired]
        if not self.loads_on_demand or any(other.state is not State.END for other in others):
            return False
        self.versions[number] = VersionRecord(version.aspired, version.is_aspired, remark=error.message)
        self.is_demanded = self.is_warming = False
        return True

    def why_postponed(self) -> str:
        """Return why the last load for a request failed, or ""."""
        return next((version.remark for version in self.versions.values() if version.state is State.START), "")

    def why_not_loaded(self) -> str:
        """Return why the newest version could not be loaded at a request, as a sentence after another, or ""."""
        failures = self.failures() if self.loads_on_demand and self.latest is None else []
        return f". It cannot be loaded: {failures[-1][1].message}" if failures else ""

    def can_leave(self) -> bool:
        """Return whether the versions may unload until the next request."""
        return self.loads_on_demand and self.is_demanded and not self.is_warming and self.latest is not None

    def in_use(self) -> bool:
        """Return whether a request holds one of the versions."""
        return any(version.handles for version in self.versions.values())

    def is_starting(self, number: int) -> bool:
        """Return whether this version may still come with the start of the model, so that a later request may succeed.

        Later, a version that is not available is unknown to requests, as in TensorFlow Serving.
        """
        if self.is_settled or not self.is_configured:
            return False
        version = self.versions.get(number)
        if version is None:
            return self.wanted is None
        return version.state in (State.START, State.LOADING) and not version.waits

    def is_label_coming(self, label: str) -> bool:
        """Return whether this label will take effect with the first versions of the model."""
        number = self.pending.get(label)
        return number is not None and (self.is_starting(number) or not self.versions)

    def why_hung(self) -> str:
        """Return which version that serves has a run that hangs, for people, or "" if none has."""
        hung = {number: version.why_hung() for number, version in self.versions.items() if self.is_available(number)}
        return ", ".join(f"version {number}: {why}" for number, why in hung.items() if why)

    def has_failed(self) -> bool:
        """Return whether all wanted versions have ended with an error, and no version is served."""
        wanted = [version for version in self.versions.values() if version.is_aspired]
        return self.latest is None and bool(wanted) and all(version.state is State.END for version in wanted)

    def failures(self) -> list[tuple[ServableId, ServingError]]:
        """Return the wanted versions that ended with an error, lowest first."""
        wanted = [self.versions[number] for number in sorted(self.versions) if self.versions[number].is_aspired]
        return [(version.aspired.servable, version.error) for version in wanted if version.error is not None]

    def progress(self) -> LoadProgress:
        """Return whether the versions of the source's next report serve, have failed, or may still serve."""
        if self.wanted is None or self.arriving.reason:
            return LoadProgress(absent=self.arriving.reason)
        if not self.wanted and not self.arriving.versions:
            return LoadProgress(absent="its base path contains no version that its policy chooses")
        versions = [self.versions[number] for number in sorted(self.wanted) if number in self.versions]
        failed = [version.status() for version in versions if version.error is not None or version.waits]
        serves = not self.arriving.versions and all(version.state is State.AVAILABLE for version in versions)
        return LoadProgress(serves=serves and not failed, failed=tuple(failed))

    def describe(self) -> str:
        """Describe the versions and their states, for people."""
        if self.versions:
            versions = sorted(self.versions.items())
            return ", ".join(f"version {number} is {version.state.name}" for number, version in versions)
        return self.arriving.describe() or "no version directory found"

    def describe_loads(self, now_s: float) -> str:
        """Describe the versions that load or are about to, such as `version 3, 12 s`, or return ""."""
        loading = {
            number: version.loading_since_s
            for number, version in sorted(self.versions.items())
            if version.is_aspired and version.state in (State.START, State.LOADING) and not version.waits
        }
        times = {number: 0 if since_s is None else int(now_s - since_s) for number, since_s in loading.items()}
        return "; ".join(f"version {number}{f', {taken_s} s' if taken_s else ''}" for number, taken_s in times.items())

    def _describe_start(self) -> str:
        if self.wanted is None:
            return "no report on its base path yet"
        loading = [
            f"version {number} is loading"
            for number in sorted(self.wanted)
            if (version := self.versions.get(number)) is not None
            and version.state in (State.START, State.LOADING)
            and not version.waits
            and not self.loads_on_demand
        ]
        coming = [
            f"version {number} is not complete yet: {lacks}"
            for number, lacks in self.arriving.versions.items()
            if number in self.arriving.new or number in self.pending.values()
        ]
        return "; ".join([*loading, *coming])

    def _request_again(self, number: int, known: VersionRecord, wanted: AspiredVersion) -> None:
        was_aspired, known.is_aspired = known.is_aspired, True
        if known.state is State.START or known.waits or known.state is State.UNLOADING:
            known.aspired = wanted
        elif known.state is State.LOADING and (not was_aspired or wanted.ensemble is not None):
            # The running load was given up, and the location may have changed, or an ensemble's load began with other
            # versions of its steps. The manager detects that and loads again.
            known.aspired = wanted
        # A failed version may have been repaired since, and a version that was given up is wanted again.
        elif known.state is State.END and (not was_aspired or wanted.has_changed_since(known.aspired)):
            self.versions[number] = VersionRecord(wanted)

    def _forget_old(self) -> None:
        ended = sorted(
            n for n, version in self.versions.items() if version.state is State.END and not version.is_aspired
        )
        for number in ended[:-_MAX_ENDED]:
            del self.versions[number]


class ModelStates(NamedTuple):
    """States by version number, the version of each label, and whether the versions load at a request."""

    versions: Mapping[int, State]
    labels: Mapping[str, int]
    comes_on_demand: bool = False

    @property
    def answers(self) -> bool:
        """Whether a request for the model gets an answer, perhaps after a load."""
        return self.comes_on_demand or State.AVAILABLE in self.versions.values()


def states_of(models: Mapping[str, ModelRecord]) -> dict[str, ModelStates]:
    """Return the states and the labels of each model. The registry's lock guards the records."""
    return {
        name: ModelStates(
            {number: one.state for number, one in model.versions.items()}, dict(model.labels), model.comes_on_demand()
        )
        for name, model in models.items()
    }


def loaded_of(models: Mapping[str, ModelRecord]) -> list[tuple[ServableId, Loaded]]:
    """Return each version that is loaded. The registry's lock guards the records."""
    versions = [version for model in models.values() for version in model.versions.values()]
    return [(version.aspired.servable, version.loaded) for version in versions if version.loaded is not None]


def why_not_ready(models: Mapping[str, ModelRecord], now_s: float) -> str:
    """Return why a server with these models is not ready, as `ModelRegistry.why_not_ready` describes, or ""."""
    if not models:
        return "no model is configured"
    missing = [name for name, model in models.items() if model.latest is None and not model.is_listed_on_demand]
    awaited = [name for name in missing if models[name].is_awaited and not models[name].has_failed()]
    if awaited or len(missing) == len(models):
        return _describe_missing({name: models[name] for name in awaited or missing}, now_s)
    if hung := [f"{name} ({why})" for name, model in models.items() if (why := model.why_hung())]:
        return f"no response from: {', '.join(hung)}"
    starting = {name: model.settle_start() for name, model in models.items() if model.is_awaited}
    waits = [f"{name} ({what})" for name, what in starting.items() if what]
    return f"the start has not ended for: {', '.join(waits)}" if waits else ""


def is_starting(models: Mapping[str, ModelRecord]) -> bool:
    """Return whether the start of a model has not ended that the server is not ready without."""
    return any(model.is_awaited and not model.has_failed() and model.settle_start() != "" for model in models.values())


def _describe_missing(models: Mapping[str, ModelRecord], now_s: float) -> str:
    """Describe models without a version: those that only load need no action."""
    loads = {name: model.describe_loads(now_s) for name, model in models.items()}
    lacks = {name: models[name].arriving.describe() for name, loading in loads.items() if not loading}
    loading = [f"{name} ({described})" for name, described in loads.items() if described]
    missing = [f"{name} ({reason})" if reason else name for name, reason in lacks.items()]
    parts = {"loading": loading, "no version available for": missing}
    return "; ".join(f"{words}: {', '.join(names)}" for words, names in parts.items() if names)


# A model may have dozens of signatures, and a signature dozens of lengths.
_MOST_LINES = 8
_MOST_SIZES = 8


def describe_costs(costs: CostModel) -> Sequence[str]:
    """Return a line for each signature that has run, with the current costs of its sizes and the fitted line."""
    curves = costs.snapshot()
    lines = [_describe(curve) for curve in curves[:_MOST_LINES]]
    if len(curves) > _MOST_LINES:
        lines.append(
            f"{len(curves) - _MOST_LINES} more signatures or lengths: see the metric tpuserve_batch_cost_seconds"
        )
    return lines


def _describe(curve: CurveSnapshot) -> str:
    lengths = f" at length {' x '.join(map(str, curve.lengths))}" if curve.lengths else ""
    sizes = ", ".join(
        f"{counted(cost.rows, 'row')} in {_ms(cost.mean_s)} ± {_ms(cost.spread_s)}" for cost in curve.shown(_MOST_SIZES)
    )
    line = "" if curve.line is None else f"; about {_ms(curve.line.t0_s)} + {_ms(curve.line.per_row_s)} per row"
    return f"{curve.signature_name}{lengths}: {sizes}{line}"


def _ms(seconds: float) -> str:
    """Format milliseconds with three significant digits and no exponent."""
    ms = float(f"{seconds * 1000:.3g}")
    return f"{ms:.6f}".rstrip("0").rstrip(".") + " ms"
