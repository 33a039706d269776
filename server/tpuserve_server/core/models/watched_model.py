"""WatchedModel: one model's base path as the source has seen it, and the rules by which a version is complete."""

import enum
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeAlias

from tpuserve_server.core.models.configuration_rules import describe_without_version
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.storage import Storage, VersionLocation
from tpuserve_server.core.terms.types import Pending, ServableId

logger = logging.getLogger(__name__)

# Seconds without a change after which a version counts as complete: without a manifest, and with known missing files.
# A copy from an object store may pause for long.
STILL_S: Final = 1.0
_PATIENT_S: Final = 30.0
# Age of the last change, by the times of the files, from which a version without a manifest is complete at the first
# look. It is long, because the clocks of a file server and of this machine may differ
# (docs/explanation/decisions/0096-the-age-of-files-completes-a-version.md).
_OLD_S: Final = 60.0
_UNLISTED: Final = f"no manifest lists its files, so they must stay unchanged for {STILL_S:g} s"


class Found(enum.Enum):
    """Outcome of one look at a base path."""

    COMPLETE = enum.auto()  # every version that the policy chooses
    INCOMPLETE = enum.auto()  # some version
    ABSENT = enum.auto()  # no base path
    UNREADABLE = enum.auto()


# Receivers of reports on one model: of the complete versions that its policy chooses, and of what is missing.
OnAspired: TypeAlias = Callable[[ModelConfig, Mapping[int, AspiredVersion]], None]
OnPending: TypeAlias = Callable[[ModelConfig, Pending], None]


class WatchedModel:
    """One base path. One thread at a time calls `look`.

    These fields belong to the source: `due_s`, the time of the next look, and `failures`, the number of failed looks in
    a row. Until `settled_until_s`, a look is only needed if the stamp of the directory is not `stamp`.
    """

    def __init__(
        self,
        config: ModelConfig,
        storage: Storage,
        on_aspired: OnAspired,
        on_pending: OnPending,
        clock: Clock,
        unix_s: Callable[[], float],
    ) -> None:
        """Know nothing about the base path. `unix_s` is the time of day, by which files have ages."""
        self.config = config
        self.due_s = 0.0
        self.failures = 0
        self.settled_until_s = 0.0
        self.stamp: tuple[int, ...] | None = None
        self._storage = storage
        self._on_aspired = on_aspired
        self._on_pending = on_pending
        self._clock = clock
        self._unix_s = unix_s
        self._observations: dict[int, _Observation] = {}
        # The versions that were last reported as not complete.
        self._lacking: Collection[int] = ()
        # The last warning about the model (None) and about each version.
        self._warned: dict[int | None, str] = {}

    def look(self) -> Found:
        """List the base path once, and report. Blocks on the disk or the store. Raises nothing."""
        config = self.config
        try:
            versions = self._storage.find_versions(config.base_path)
            self._explain(config, versions)
            if versions is None:
                return Found.ABSENT
            self._forget_all_but(versions)
            return self._aspire(config, versions)
        except Exception as error:
            # The top of a polling thread. An error in one model's files must not stop the others, and the next look
            # tries again.
            self._warn_once(None, f"cannot be polled: {_reason(error)}")
            self._on_pending(config, Pending("its base path cannot be read"))
            return Found.UNREADABLE

    def _explain(self, config: ModelConfig, versions: Mapping[int, VersionLocation] | None) -> None:
        """Warn about a base path that the operator probably did not intend."""
        absent = config.version_policy.absent(versions or ())
        if not versions:
            self._explain_none(config, exists=versions is not None)
        elif absent:
            numbers = ", ".join(str(number) for number in absent)
            self._warn_once(None, f"lacks versions that its policy requests: {numbers} in {config.base_path}")
        else:
            self._warned.pop(None, None)
        for number, location in (versions or {}).items():
            if location.shadowed:
                ignored = ", ".join(location.shadowed)
                self._warn_once(
                    number, f"is loaded from {location}; the server ignores other directories of this number: {ignored}"
                )

    def _explain_none(self, config: ModelConfig, *, exists: bool) -> None:
        """Warn that there is no version, and report the reason for clients, without the directory's name."""
        path = config.base_path
        file = self._storage.find_version_file(path) if exists else ""
        self._warn_once(None, f"is waiting: its {describe_without_version(path, exists=exists, file=file)}")
        if not exists:
            reason = "its base path does not exist"
        elif file:
            reason = f"its base path is itself a version: it contains {file}"
        else:
            reason = "its base path contains no version directory such as 1/"
        self._on_pending(config, Pending(reason))

    def _warn_once(self, version: int | None, what: str) -> None:
        """Warn about the model or one of its versions once, instead of at every look."""
        if self._warned.get(version) != what:
            self._warned[version] = what
            shown = self.config.name if version is None else f"{self.config.name} version {version}"
            logger.warning("Model %s %s", shown, what)

    def _forget_all_but(self, versions: Mapping[int, VersionLocation]) -> None:
        """Forget all other versions. A version that is added again starts fresh."""
        self._observations = {number: each for number, each in self._observations.items() if number in versions}
        self._warned = {number: what for number, what in self._warned.items() if number is None or number in versions}

    def _aspire(self, config: ModelConfig, versions: Mapping[int, VersionLocation]) -> Found:
        """Report the policy's choice of the complete versions."""
        intended = config.version_policy.choose(versions)
        chosen, incomplete = self._choose_complete(config, versions)
        # A caller that waits for a new version must see that it is incomplete, or that it is wanted, at all times.
        if incomplete:
            completed = [number for number in chosen if number in self._lacking]
            self._report_incomplete(config, [*completed, *incomplete])
        # While no version is complete, the served versions stay.
        if chosen or not intended:
            self._on_aspired(config, chosen)
        if versions:
            self._report_incomplete(config, incomplete)
        return Found.INCOMPLETE if incomplete else Found.COMPLETE

    def _report_incomplete(self, config: ModelConfig, numbers: Iterable[int]) -> None:
        """Report what versions lack that the policy would choose if they were complete."""
        lacking = {number: self._observations[number].lacks for number in numbers}
        for number, lacks in lacking.items():
            # Warn once for each version, because sizes change at every look at a copy. Every new version without a
            # manifest is _UNLISTED at first.
            if number not in self._warned and lacks != _UNLISTED:
                self._warn_once(number, f"is not complete yet: {lacks}")
        self._lacking = lacking.keys()
        now_s = self._clock.monotonic_s()
        new = frozenset(number for number in lacking if now_s - self._observations[number].first_s < STILL_S)
        self._on_pending(config, Pending(versions=lacking, new=new))

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
        observation = self._observations.get(number)
        if observation is None or observation.uri != location.uri:
            # The same number in another base path is another version.
            observation = self._observations[number] = _Observation(location.uri)
        try:
            self._observe(observation, location)
        except Exception as error:
            # An error of one version must not hide the others. The next look tries again.
            observation.lacks = "its files cannot be read"
            self._warn_once(number, f"cannot be checked: {_reason(error)}")
        if observation.settled is None:
            return None
        return AspiredVersion(
            ServableId(config.name, number),
            location,
            observation.settled,
            config.batching,
            config.response_cache_max_bytes,
            refusal=observation.refusal,
        )

    def _observe(self, observation: "_Observation", location: VersionLocation) -> None:
        still_s = observation.update(self._storage.fingerprint(location), self._clock.monotonic_s())
        if observation.settled == observation.fingerprint:
            return
        refusal = self._storage.refusal(location)
        if refusal and observation.settled is not None and not observation.refusal:
            # The version was usable, and may be served. It stays as it was.
            return
        observation.refusal = refusal
        lacks = "" if observation.refusal else self._storage.missing(location)
        if lacks is None:
            is_complete = still_s >= STILL_S or self._is_old(location)
        else:
            is_complete = lacks == "" or still_s >= _PATIENT_S
        if is_complete:
            observation.settled = observation.fingerprint
        observation.lacks = lacks or _UNLISTED

    def _is_old(self, location: VersionLocation) -> bool:
        """Return whether nothing has changed in a version for long, by the times of its files."""
        changed_unix_s = self._storage.changed_unix_s(location)
        return changed_unix_s is not None and self._unix_s() - changed_unix_s >= _OLD_S


def _reason(error: Exception) -> str:
    """Return the message of an expected error, or the message and type of an unexpected one."""
    return str(error) if isinstance(error, OSError | ServingError) else repr(error)


class _Observation:
    """The observations of one version: its contents, since when they are unchanged, and those when it was complete.

    `first_s` is the time when its files were first read. `lacks` is for a version that was never complete. `refusal` is
    the storage's when it was complete.
    """

    __slots__ = ("changed_s", "fingerprint", "first_s", "lacks", "refusal", "settled", "uri")

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.first_s = self.changed_s = -math.inf
        self.fingerprint: str | None = None
        self.settled: str | None = None
        self.lacks = ""
        self.refusal = ""

    def update(self, fingerprint: str, now_s: float) -> float:
        """Take the contents at `now_s`, and return the seconds since they were first seen."""
        if self.fingerprint is None:
            self.first_s = now_s
        if fingerprint != self.fingerprint:
            self.fingerprint, self.changed_s = fingerprint, now_s
        return now_s - self.changed_s
