"""JournaledExecutor: records the loads and runs of another executor, and refuses versions that end the process."""

import logging
from collections.abc import Mapping, Sequence

from tpuserve_server.core.errors import Quarantined
from tpuserve_server.core.journal import MOST_ENDS, End, Entry, Journal, Mark
from tpuserve_server.core.servable import Executor, InFlight, Servable, VersionFiles
from tpuserve_server.core.types import ServableId, Signature, Tensors

_log = logging.getLogger(__name__)


class JournaledExecutor:
    """Executor of `executor`'s versions, with a journal. Thread-safe.

    A version that may have ended the process once is a suspect: suspects load and run one at a time.
    """

    def __init__(self, executor: Executor, journal: Journal) -> None:
        """Load with `executor`."""
        self._executor = executor
        self._journal = journal

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Implement Executor.load.

        Raises:
            Quarantined: loading or running the version ended the process too often.
        """
        ends = self._journal.ends_of(servable_id, version.fingerprint)
        if len(ends) >= MOST_ENDS:
            raise Quarantined(_describe(ends))
        if ends:
            _log.warning("%s may have ended the process. It loads and runs alone for now: %s", servable_id, ends[-1])
        with self._journal.loading(servable_id, version.fingerprint, is_suspect=bool(ends)) as entry:
            servable = self._executor.load(servable_id, version)
        return _JournaledServable(servable, self._journal, entry)


class _JournaledServable:
    """Servable whose runs are in the journal from `dispatch` until their result."""

    def __init__(self, servable: Servable, journal: Journal, entry: Entry) -> None:
        self._servable = servable
        self._journal = journal
        self._entry = entry

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._servable.signatures

    @property
    def device(self) -> str:
        return self._servable.device

    @property
    def max_in_flight(self) -> int:
        return self._servable.max_in_flight

    @property
    def unrepeatable(self) -> str:
        return self._servable.unrepeatable

    @property
    def never_blocks(self) -> bool:
        return self._servable.never_blocks

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        mark = self._entry.begin_run()
        try:
            return _JournaledRun(self._servable.dispatch(signature_name, inputs, output_names), self._entry, mark)
        except BaseException:
            self._entry.end_run(mark)
            raise

    def close(self) -> None:
        self._servable.close()
        self._journal.forget(self._entry)


class _JournaledRun:
    """A dispatched run."""

    __slots__ = ("_entry", "_mark", "_run")

    def __init__(self, run: InFlight, entry: Entry, mark: Mark) -> None:
        self._run = run
        self._entry = entry
        self._mark = mark

    def result(self) -> Tensors:
        try:
            return self._run.result()
        finally:
            self._entry.end_run(self._mark)


def _describe(ends: Sequence[End]) -> str:
    last = ends[-1]
    return (
        f"quarantined: {len(ends)} times within an hour the server's process ended while this version was loading or "
        f"running, last while {last.activity} ({last.how}). Replace the version, or restart the server to try it again"
    )
