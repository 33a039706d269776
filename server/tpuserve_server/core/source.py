"""Source: watches base paths and says which versions ought to be served."""

import contextlib
import hashlib
import logging
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tpuserve_server.core.types import AspiredVersion, ServableId

logger = logging.getLogger(__name__)

# Polls without a change after which a version without a manifest is taken for whole, and one whose manifest says that
# it is not for as whole as it will get. A copy from an object store may pause for long.
_STILL_POLLS = 1
_PATIENT_POLLS = 30


class Source:
    """Polls each model's base path and reports the latest version in it, from its own thread.

    A base path that does not exist changes nothing: a volume may not be mounted yet, or no longer. One that exists and
    holds no version takes the model away. A version is reported once it is whole, and a copy is left alone while it is
    under way: with a manifest a version is whole when that says so, without one when nothing in it has changed between
    two polls. One that its manifest calls incomplete is reported all the same after a long standstill, so that its
    loading says why.

    After `start` everything here belongs to the polling thread.
    """

    def __init__(
        self,
        base_paths: Mapping[str, Path],
        on_aspired: Callable[[str, Mapping[int, AspiredVersion]], None],
        *,
        poll_wait_s: float,
        is_whole: Callable[[Path], bool | None],
    ) -> None:
        """Watch `base_paths` by model name.

        `poll_wait_s` of 0 means: look until every version is whole, then stop. `is_whole` tells by a version's
        manifest, and None where there is none.
        """
        self._base_paths = base_paths
        self._on_aspired = on_aspired
        self._poll_wait_s = poll_wait_s
        self._is_whole = is_whole
        self._seen: dict[ServableId, _Sight] = {}
        self._said: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source")

    def start(self) -> None:
        """Start polling; the first poll happens at once, on the source's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling and join the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def poll(self) -> bool:
        """Look at every base path once and report. False while some version is not yet whole."""
        # All are looked at before any is judged: one model that is not settled must not hide the others.
        settled = [self._poll_model(name, path) for name, path in self._base_paths.items()]
        return all(settled)

    def _run(self) -> None:
        settled = self.poll()
        while not (settled and self._poll_wait_s == 0):
            if self._stop.wait(self._poll_wait_s or 1):
                return
            settled = self.poll()

    def _poll_model(self, name: str, base_path: Path) -> bool:
        try:
            versions = find_versions(base_path)
            if versions is None:
                self._say(name, f"waits: its base path {base_path} does not exist")
                return False
            self._forget_all_but(name, versions)
            if not versions:
                self._say(name, f"waits: its base path {base_path} holds no version folder such as 1/")
                self._on_aspired(name, {})
                return True
            return self._aspire_latest(name, versions)
        except Exception as error:
            # The top of the polling thread: whatever one model's files are, the others are looked at, and so is this
            # one at the next poll.
            self._say(name, f"cannot be looked at: {error!r}")
            return False

    def _say(self, name: str, what: str) -> None:
        """Once, not at every poll."""
        if self._said.get(name) != what:
            self._said[name] = what
            logger.warning("Model %s %s", name, what)

    def _forget_all_but(self, name: str, versions: Mapping[int, Path]) -> None:
        """A version that has gone and comes again is a new one."""
        for servable_id in [known for known in self._seen if known.name == name and known.version not in versions]:
            del self._seen[servable_id]

    def _aspire_latest(self, name: str, versions: Mapping[int, Path]) -> bool:
        """Report the highest whole version; True if that is the highest of all."""
        for number in sorted(versions, reverse=True):
            servable_id = ServableId(name, number)
            fingerprint = self._settle(servable_id, versions[number])
            if fingerprint is not None:
                aspired = AspiredVersion(servable_id, versions[number], fingerprint)
                self._on_aspired(name, {number: aspired})
                return number == max(versions)
        return False

    def _settle(self, servable_id: ServableId, path: Path) -> str | None:
        """The fingerprint of the version as it last was whole; None if it never was."""
        sight = self._seen.setdefault(servable_id, _Sight())
        sight.look(fingerprint_tree(path))
        whole = self._is_whole(path)
        if whole or sight.still_polls >= (_STILL_POLLS if whole is None else _PATIENT_POLLS):
            sight.settled = sight.fingerprint
        return sight.settled


class _Sight:
    """What was seen of one version: its contents now, for how many polls they have not changed, and when last whole."""

    __slots__ = ("fingerprint", "settled", "still_polls")

    def __init__(self) -> None:
        self.fingerprint: str | None = None
        self.still_polls = 0
        self.settled: str | None = None

    def look(self, fingerprint: str) -> None:
        self.still_polls = self.still_polls + 1 if fingerprint == self.fingerprint else 0
        self.fingerprint = fingerprint


def find_versions(base_path: Path) -> dict[int, Path] | None:
    """Version directories by number; None if `base_path` is not a directory.

    A version is a directory named by a non-negative int64, leading zeros allowed; anything else is ignored. Of two that
    name one number the first in alphabetical order is taken.

    Raises:
        OSError: the base path cannot be read.
    """
    if not base_path.is_dir():
        return None
    versions: dict[int, Path] = {}
    for path in sorted(base_path.iterdir()):
        if path.name.isascii() and path.name.isdigit() and int(path.name) < 2**63 and path.is_dir():
            versions.setdefault(int(path.name), path)
    return versions


def fingerprint_tree(path: Path) -> str:
    """A digest that changes when a file below `path` is added, removed, resized or written, readable or not."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        # Of a link what it points to, as that is what will be loaded; of one that points nowhere, itself.
        with contextlib.suppress(OSError):
            info = file.stat() if file.exists() else file.lstat()
            if not stat.S_ISDIR(info.st_mode):
                digest.update(f"{file.relative_to(path)}:{info.st_size}:{info.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()
