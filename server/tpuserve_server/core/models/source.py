"""Source: watches base paths and reports the versions that should be served."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping

from tpuserve_server.core.models.configuration_rules import describe_without_version
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.storage import Storage, VersionLocation
from tpuserve_server.core.terms.types import Pending, ServableId

logger = logging.getLogger(__name__)

# Polls without a change after which a version counts as complete: without a manifest, and with a manifest that lists
# missing files. A copy from an object store may pause for long.
_STILL_POLLS = 1
_PATIENT_POLLS = 30
_CHANGING = "no manifest lists its files, and they have changed since the last poll"


class Source:
    """Polls each model's base path on its own thread and reports the versions that its policy chooses.

    A base path that does not exist changes nothing, because a volume may be unmounted for a while. A base path that
    exists and holds no version unloads the model.

    A version is reported once it is complete, so that the server does not load a copy in progress. With a manifest, a
    version is complete when all listed files are there. Without one, it is complete when no file has changed between
    two polls. After many polls without a change, an incomplete version is reported too. Its load reports the error.

    `_lock` guards `_configs` and the right to report. The polling thread owns all other fields.
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

        With a `poll_wait_s` of 0 the source polls until every version is complete, and then waits for the next call of
        `watch`.
        """
        self._storage = storage
        self._on_aspired = on_aspired
        self._on_pending = on_pending
        self._poll_wait_s = poll_wait_s
        self._lock = threading.Lock()
        self._configs: dict[str, ModelConfig] = {}
        self._observations: dict[ServableId, _Observation] = {}
        # The versions that were last reported as not complete, by model.
        self._lacking: dict[str, Collection[int]] = {}
        self._warned: dict[str | ServableId, str] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="source")

    def start(self) -> None:
        """Start polling. The first poll happens at once, on the source's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling and join the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def watch(self, configs: Iterable[ModelConfig]) -> None:
        """Watch these models and no others from now on, and poll at once. No report on other models follows."""
        with self._lock:
            self._configs = {config.name: config for config in configs}
        self._wake.set()

    def poll(self) -> bool:
        """Poll every base path once and report. Return False while a version is not yet complete."""
        with self._lock:
            configs = list(self._configs.values())
        self._forget_models_but({config.name for config in configs})
        # Poll all models before combining the results: an unsettled model must not hide the others.
        settled = [self._poll_model(config) for config in configs if not self._stopping]
        return all(settled)

    def _run(self) -> None:
        while True:
            # Clear the event before polling, so that the next round sees changes during the poll, and `stop`.
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
            # The top of the polling thread. An error in one model's files must not stop the others, and the next poll
            # tries again.
            self._warn_once(name, f"cannot be polled: {_reason(error)}")
            self._report_pending(config, Pending("its base path cannot be read"))
            return False

    def _explain(self, config: ModelConfig, versions: Mapping[int, VersionLocation] | None) -> None:
        """Warn about a base path that the operator probably did not intend."""
        absent = config.version_policy.absent(versions or ())
        if not versions:
            self._explain_none(config, exists=versions is not None)
        elif absent:
            numbers = ", ".join(str(number) for number in absent)
            self._warn_once(config.name, f"lacks versions that its policy requests: {numbers} in {config.base_path}")
        else:
            self._warned.pop(config.name, None)
        for number, location in (versions or {}).items():
            if location.shadowed:
                ignored = ", ".join(location.shadowed)
                self._warn_once(
                    ServableId(config.name, number),
                    f"is loaded from {location}; the server ignores other directories of this number: {ignored}",
                )

    def _explain_none(self, config: ModelConfig, *, exists: bool) -> None:
        """Warn that there is no version, and report the reason for clients, without the directory's name."""
        path = config.base_path
        file = self._storage.find_version_file(path) if exists else ""
        self._warn_once(config.name, f"is waiting: its {describe_without_version(path, exists=exists, file=file)}")
        if not exists:
            reason = "its base path does not exist"
        elif file:
            reason = f"its base path is itself a version: it contains {file}"
        else:
            reason = "its base path contains no version directory such as 1/"
        self._report_pending(config, Pending(reason))

    def _warn_once(self, subject: str | ServableId, what: str) -> None:
        """Warn about a model or one of its versions once, instead of at every poll."""
        if self._warned.get(subject) != what:
            self._warned[subject] = what
            shown = f"{subject.name} version {subject.version}" if isinstance(subject, ServableId) else subject
            logger.warning("Model %s %s", shown, what)

    def _forget_models_but(self, names: set[str]) -> None:
        """Forget all models except `names`. A model that is added again starts fresh."""
        self._forget(lambda known: (known if isinstance(known, str) else known.name) not in names)

    def _forget_versions_but(self, name: str, versions: Mapping[int, VersionLocation]) -> None:
        """Forget all versions of a model except `versions`. A version that is added again starts fresh."""
        self._forget(
            lambda known: isinstance(known, ServableId) and known.name == name and known.version not in versions
        )

    def _forget(self, is_gone: Callable[[str | ServableId], bool]) -> None:
        self._observations = {
            known: observation for known, observation in self._observations.items() if not is_gone(known)
        }
        self._warned = {known: what for known, what in self._warned.items() if not is_gone(known)}
        self._lacking = {name: numbers for name, numbers in self._lacking.items() if not is_gone(name)}

    def _aspire(self, config: ModelConfig, versions: Mapping[int, VersionLocation]) -> bool:
        """Report the policy's choice of the complete versions. Return whether all that it wants are complete."""
        intended = config.version_policy.choose(versions)
        chosen, incomplete = self._choose_complete(config, versions)
        # A caller that waits for a new version must see that it is incomplete, or that it is wanted, at all times.
        if incomplete:
            completed = [number for number in chosen if number in self._lacking.get(config.name, ())]
            self._report_incomplete(config, [*completed, *incomplete])
        # While no version is complete, the served versions stay.
        if chosen or not intended:
            self._report(config, chosen)
        if versions:
            self._report_incomplete(config, incomplete)
        return not incomplete

    def _report_incomplete(self, config: ModelConfig, numbers: Iterable[int]) -> None:
        """Report what versions lack that the policy would choose if they were complete."""
        lacking = {number: self._observations[ServableId(config.name, number)].lacks for number in numbers}
        for number, lacks in lacking.items():
            subject = ServableId(config.name, number)
            # Warn once for each version, because sizes change at every poll of a copy. Every new version is in
            # _CHANGING at first.
            if subject not in self._warned and lacks != _CHANGING:
                self._warn_once(subject, f"is not complete yet: {lacks}")
        self._lacking[config.name] = lacking.keys()
        new = {number for number in lacking if self._observations[ServableId(config.name, number)].polls == 1}
        self._report_pending(config, Pending(versions=lacking, new=frozenset(new)))

    def _report_pending(self, config: ModelConfig, pending: Pending) -> None:
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_pending(config.name, pending)

    def _choose_complete(
        self, config: ModelConfig, versions: Mapping[int, VersionLocation]
    ) -> tuple[Mapping[int, AspiredVersion], Iterable[int]]:
        """Return the policy's choice of the complete versions, and the numbers of those that are not complete.

        Only versions that the policy would choose are checked. The first result also has the refused versions among
        them, in addition to the policy's choice. Their loads fail with the reason, and the others serve.
        """
        checked: dict[int, AspiredVersion | None] = {}
        unusable: set[int] = set()
        while True:
            chosen = config.version_policy.choose([number for number in versions if number not in unusable])
            new = [number for number in chosen if number not in checked]
            if not new:
                break
            for number in new:
                version = checked[number] = self._check(config, number, versions[number])
                if version is None or version.refusal:
                    unusable.add(number)
        aspired = {number: version for number, version in checked.items() if version is not None}
        wanted = {number: version for number, version in aspired.items() if number in chosen or version.refusal}
        return wanted, [number for number, version in checked.items() if version is None]

    def _check(self, config: ModelConfig, number: int, location: VersionLocation) -> AspiredVersion | None:
        """Return the version as it was when it was last complete, or None if it never was."""
        servable_id = ServableId(config.name, number)
        fingerprint, refusal = self._settle(servable_id, location)
        if fingerprint is None:
            return None
        return AspiredVersion(
            servable_id,
            location,
            fingerprint,
            config.batching,
            config.response_cache_max_bytes,
            refusal=refusal,
        )

    def _report(self, config: ModelConfig, chosen: Mapping[int, AspiredVersion]) -> None:
        """Report the versions, unless the model was removed or reconfigured during the poll."""
        with self._lock:
            if self._configs.get(config.name) is config:
                self._on_aspired(config.name, chosen)

    def _settle(self, servable_id: ServableId, location: VersionLocation) -> tuple[str | None, str]:
        """Return the fingerprint and refusal of the version when it was last complete, or None if it never was."""
        observation = self._observations.get(servable_id)
        if observation is None or observation.uri != location.uri:
            # The same number in another base path is another version.
            observation = self._observations[servable_id] = _Observation(location.uri)
        try:
            self._observe(observation, location)
        except Exception as error:
            # An error of one version must not hide the others. The next poll tries again.
            observation.lacks = "its files cannot be read"
            self._warn_once(servable_id, f"cannot be checked: {_reason(error)}")
        return observation.settled, observation.refusal

    def _observe(self, observation: "_Observation", location: VersionLocation) -> None:
        observation.update(self._storage.fingerprint(location))
        if observation.settled == observation.fingerprint:
            return
        refusal = self._storage.refusal(location)
        if refusal and observation.settled is not None and not observation.refusal:
            # The version was usable, and may be served. It stays as it was.
            return
        observation.refusal = refusal
        lacks = "" if observation.refusal else self._storage.missing(location)
        if lacks == "" or observation.still_polls >= (_STILL_POLLS if lacks is None else _PATIENT_POLLS):
            observation.settled = observation.fingerprint
        observation.lacks = lacks or _CHANGING


def _reason(error: Exception) -> str:
    """Return the message of an expected error, or the message and type of an unexpected one."""
    return str(error) if isinstance(error, OSError | ServingError) else repr(error)


class _Observation:
    """The source's observations of one version: its contents, its polls, those since a change, when it was complete.

    `lacks` is for a version that was never complete. `refusal` is the storage's when it was complete.
    """

    __slots__ = ("fingerprint", "lacks", "polls", "refusal", "settled", "still_polls", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.fingerprint: str | None = None
        self.polls = 0
        self.still_polls = 0
        self.settled: str | None = None
        self.lacks = ""
        self.refusal = ""

    def update(self, fingerprint: str) -> None:
        self.polls += 1
        self.still_polls = self.still_polls + 1 if fingerprint == self.fingerprint else 0
        self.fingerprint = fingerprint
