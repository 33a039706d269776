"""Source: watches base paths and says which versions ought to be served."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from tpuserve_server.core.aspired_version import AspiredVersion
from tpuserve_server.core.base_path import describe_without_version
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.core.storage import Storage, VersionLocation
from tpuserve_server.core.types import Pending, ServableId

logger = logging.getLogger(__name__)

# Polls without a change after which a version without a manifest is taken for whole, and one whose manifest says that
# it is not for as whole as it will get. A copy from an object store may pause for long.
_STILL_POLLS = 1
_PATIENT_POLLS = 30
_CHANGING = "no manifest lists its files, and they have changed since the last look"


class Source:
    """Polls each model's base path and reports the versions that its policy chooses, from its own thread.

    A base path that does not exist changes nothing: a volume may not be mounted yet, or no longer. One that exists and
    holds no version takes the model away. A version is reported once it is whole, and a copy is left alone while it is
    under way: with a manifest a version is whole when that says so, without one when nothing in it has changed between
    two polls. One that its manifest calls incomplete is reported all the same after a long standstill, so that its
    loading says why.

    `_configs` and the right to report are guarded by `_lock`; everything else belongs to the polling thread.
    """

    def __init__(
        self,
        storage: Storage,
        on_aspired: Callable[[str, Mapping[int, AspiredVersion]], None],
        *,
        poll_wait_s: float,
        on_pending: Callable[[str, Pending], None] = lambda _name, _pending: None,
    ) -> None:
        """Watch nothing before `watch`. `on_aspired` and `on_pending` (missing parts of a model) must not block.

        `poll_wait_s` of 0 means: look until every version is whole, then no more until `watch` is called again.
        """
        self._storage = storage
        self._on_aspired = on_aspired
        self._on_pending = on_pending
        self._poll_wait_s = poll_wait_s
        self._lock = threading.Lock()
        self._configs: dict[str, ModelConfig] = {}
        self._seen: dict[ServableId, _Sight] = {}
        self._said: dict[str | ServableId, str] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="source")

    def start(self) -> None:
        """Start polling; the first poll happens at once, on the source's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling and join the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def watch(self, configs: Iterable[ModelConfig]) -> None:
        """Watch these models from now on, and no others; look at once. After this nothing is said of the others."""
        with self._lock:
            self._configs = {config.name: config for config in configs}
        self._wake.set()

    def poll(self) -> bool:
        """Look at every base path once and report. False while some version is not yet whole."""
        with self._lock:
            configs = list(self._configs.values())
        self._forget_models_but({config.name for config in configs})
        # All are looked at before any is judged: one model that is not settled must not hide the others.
        settled = [self._poll_model(config) for config in configs if not self._stopping]
        return all(settled)

    def _run(self) -> None:
        while True:
            # Cleared before looking: what is said meanwhile, `stop` too, is seen in the next round.
            self._wake.clear()
            if self._stopping:
                return
            settled = self.poll()
            self._wake.wait(None if settled and self._poll_wait_s == 0 else self._poll_wait_s or 1)

    def _poll_model(self, config: ModelConfig) -> bool:
        name = config.name
        try:
            versions = self._storage.find_versions(config.base_path)
            self._explain(config, versions)
            if versions is None:
                return False
            self._forget_versions_but(name, versions)
            return self._aspire(config, versions)
        except Exception as error:
            # The top of the polling thread: whatever one model's files are, the others are looked at, and so is this
            # one at the next poll.
            self._say(name, f"cannot be looked at: {_reason(error)}")
            self._tell_pending(config, Pending("its base path cannot be read"))
            return False

    def _explain(self, config: ModelConfig, versions: Mapping[int, VersionLocation] | None) -> None:
        """Warn of what an operator will not have meant."""
        absent = config.version_policy.absent(versions or ())
        if not versions:
            self._explain_none(config, exists=versions is not None)
        elif absent:
            numbers = ", ".join(str(number) for number in absent)
            self._say(config.name, f"lacks versions that its policy names: {numbers} in {config.base_path}")
        else:
            self._said.pop(config.name, None)
        for number, location in (versions or {}).items():
            if location.shadowed:
                ignored = ", ".join(location.shadowed)
                self._say(ServableId(config.name, number), f"is taken from {location}; ignored beside it: {ignored}")

    def _explain_none(self, config: ModelConfig, *, exists: bool) -> None:
        """Warn that there is no version, and report the reason for clients, without the folder's name."""
        path = config.base_path
        file = self._storage.find_version_file(path) if exists else ""
        self._say(config.name, f"waits: its {describe_without_version(path, exists=exists, file=file)}")
        if not exists:
            reason = "its base path does not exist"
        elif file:
            reason = f"its base path is itself a version: it holds {file}"
        else:
            reason = "its base path holds no version folder such as 1/"
        self._tell_pending(config, Pending(reason))

    def _say(self, subject: str | ServableId, what: str) -> None:
        """Warn of a model, or of one of its versions, once and not at every poll."""
        if self._said.get(subject) != what:
            self._said[subject] = what
            shown = f"{subject.name} version {subject.version}" if isinstance(subject, ServableId) else subject
            logger.warning("Model %s %s", shown, what)

    def _forget_models_but(self, names: set[str]) -> None:
        """A model that was taken away and comes again is a new one."""
        self._forget(lambda known: (known if isinstance(known, str) else known.name) not in names)

    def _forget_versions_but(self, name: str, versions: Mapping[int, VersionLocation]) -> None:
        """A version that has gone and comes again is a new one."""
        self._forget(
            lambda known: isinstance(known, ServableId) and known.name == name and known.version not in versions
        )

    def _forget(self, is_gone: Callable[[str | ServableId], bool]) -> None:
        self._seen = {known: sight for known, sight in self._seen.items() if not is_gone(known)}
        self._said = {known: what for known, what in self._said.items() if not is_gone(known)}

    def _aspire(self, config: ModelConfig, versions: Mapping[int, VersionLocation]) -> bool:
        """Report what the policy chooses of the whole versions; True if it would choose no other of all there are."""
        meant = config.version_policy.choose(versions)
        chosen, incomplete = self._choose_whole(config, versions)
        # While nothing is whole, what was served before is still better than nothing.
        if chosen or not meant:
            self._report(config, chosen)
        if versions:
            self._tell_incomplete(config, incomplete)
        return list(chosen) == meant

    def _tell_incomplete(self, config: ModelConfig, numbers: Iterable[int]) -> None:
        """Report what versions lack that the policy would choose, were they whole."""
        lacking = {number: self._seen[ServableId(config.name, number)].lacks for number in numbers}
        for number, lacks in lacking.items():
            subject = ServableId(config.name, number)
            # Once a version: sizes change at every poll of a copy. Every new version is in _CHANGING at first.
            if subject not in self._said and lacks != _CHANGING:
                self._say(subject, f"is not whole yet: {lacks}")
        self._tell_pending(config, Pending(versions=lacking))

    def _tell_pending(self, config: ModelConfig, pending: Pending) -> None:
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_pending(config.name, pending)

    def _choose_whole(
        self, config: ModelConfig, versions: Mapping[int, VersionLocation]
    ) -> tuple[Mapping[int, AspiredVersion], Iterable[int]]:
        """Return what the policy chooses of the whole versions, and the numbers of those that are not whole.

        It looks only at versions that the policy would choose.
        """
        looked: dict[int, str | None] = {}
        while True:
            present = [number for number in versions if looked.get(number, "") is not None]
            chosen = config.version_policy.choose(present)
            new = [number for number in chosen if number not in looked]
            if not new:
                break
            for number in new:
                looked[number] = self._settle(ServableId(config.name, number), versions[number])
        aspired = {
            number: AspiredVersion(
                ServableId(config.name, number), versions[number], looked[number] or "", config.batching
            )
            for number in chosen
        }
        return aspired, [number for number, fingerprint in looked.items() if fingerprint is None]

    def _report(self, config: ModelConfig, chosen: Mapping[int, AspiredVersion]) -> None:
        """Unless the model was taken away, or given another configuration, while it was looked at."""
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_aspired(config.name, chosen)

    def _settle(self, servable_id: ServableId, location: VersionLocation) -> str | None:
        """The fingerprint of the version as it last was whole; None if it never was."""
        sight = self._seen.get(servable_id)
        if sight is None or sight.uri != location.uri:
            # In another base path the same number is another version.
            sight = self._seen[servable_id] = _Sight(location.uri)
        sight.look(self._storage.fingerprint(location))
        if sight.settled == sight.fingerprint:
            return sight.settled
        lacks = self._storage.missing(location)
        if lacks == "" or sight.still_polls >= (_STILL_POLLS if lacks is None else _PATIENT_POLLS):
            sight.settled = sight.fingerprint
        sight.lacks = lacks or _CHANGING
        return sight.settled


def _reason(error: Exception) -> str:
    """In words where whoever raised it meant them to be read; with its type where nobody foresaw it."""
    return str(error) if isinstance(error, OSError | ServingError) else repr(error)


class _Sight:
    """What the source has seen of one version: its contents now, since how many polls, and when they were last whole.

    `lacks` is for a version that was never whole.
    """

    __slots__ = ("fingerprint", "lacks", "settled", "still_polls", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.fingerprint: str | None = None
        self.still_polls = 0
        self.settled: str | None = None
        self.lacks = ""

    def look(self, fingerprint: str) -> None:
        self.still_polls = self.still_polls + 1 if fingerprint == self.fingerprint else 0
        self.fingerprint = fingerprint
