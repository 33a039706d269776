"""Source: watches base paths and says which versions ought to be served."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tpuserve_server.core.types import AspiredVersion, ServableId

logger = logging.getLogger(__name__)


class Source:
    """Polls each model's base path and reports the latest version in it, from its own thread.

    A base path that does not exist changes nothing: a volume may not be mounted yet, or no longer. One that exists and
    holds no version takes the model away. A version is reported once it is whole: by its manifest (`is_whole`), or, for
    one without, when nothing in it has changed between two polls. A copy that is under way is therefore left alone.

    After the first poll everything here belongs to the polling thread.
    """

    def __init__(
        self,
        base_paths: Mapping[str, Path],
        on_aspired: Callable[[str, Mapping[int, AspiredVersion]], None],
        *,
        poll_wait_s: float,
        is_whole: Callable[[Path], bool],
    ) -> None:
        """Watch `base_paths` by model name. `poll_wait_s` of 0 means: look until every version is whole, then stop."""
        self._base_paths = base_paths
        self._on_aspired = on_aspired
        self._poll_wait_s = poll_wait_s
        self._is_whole = is_whole
        self._seen: dict[ServableId, str] = {}
        self._settled: dict[ServableId, str] = {}
        self._waiting: set[str] = set()
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
            if not versions:
                self._say_waiting(name, base_path)
            if versions is None:
                return False
            if not versions:
                self._on_aspired(name, {})
                return True
            self._waiting.discard(name)
            return self._aspire_latest(name, versions)
        except OSError as error:
            # One model's file system must not stop the poll of the others; the next poll asks again.
            logger.warning("Cannot read the versions of model %s: %s", name, error.strerror)
            return False

    def _say_waiting(self, name: str, base_path: Path) -> None:
        """Once, not at every poll."""
        if name not in self._waiting:
            self._waiting.add(name)
            what = "holds no version folder such as 1/" if base_path.is_dir() else "does not exist"
            logger.warning("Model %s waits: its base path %s %s", name, base_path, what)

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
        fingerprint = fingerprint_tree(path)
        if self._seen.get(servable_id) == fingerprint or self._is_whole(path):
            self._settled[servable_id] = fingerprint
        self._seen[servable_id] = fingerprint
        return self._settled.get(servable_id)


def find_versions(base_path: Path) -> dict[int, Path] | None:
    """Version directories by number; None if `base_path` is not a directory.

    A version is a directory named by a non-negative int64, leading zeros allowed; anything else is ignored.

    Raises:
        OSError: the base path cannot be read.
    """
    if not base_path.is_dir():
        return None
    versions: dict[int, Path] = {}
    for path in sorted(base_path.iterdir()):
        if not (path.name.isascii() and path.name.isdigit() and path.is_dir()):
            continue
        number = int(path.name)
        if number >= 2**63:
            logger.warning("Ignoring %s in a base path: larger than a version number can be", path.name)
        elif number in versions:
            logger.warning("Ignoring %s: %s is version %d too", path.name, versions[number].name, number)
        else:
            versions[number] = path
    return versions


def fingerprint_tree(path: Path) -> str:
    """A string that changes when a file below `path` is added, removed, resized or written.

    Raises:
        OSError: the tree cannot be read, or changed while it was.
    """
    entries = []
    for file in sorted(path.rglob("*")):
        info = file.stat()
        if not file.is_dir():
            entries.append(f"{file.relative_to(path)}:{info.st_size}:{info.st_mtime_ns}")
    return "\n".join(entries)
