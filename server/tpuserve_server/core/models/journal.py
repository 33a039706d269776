"""Journal: which versions load or run now, in a file that survives the process, and which of them ended it.

The next process reads the file and blames the forms of input that were running for the first time, or else the versions
that were loading or running (`core.ends`).
"""

import json
import logging
import mmap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from tpuserve_server.core.models.ends import End, VersionEnds, read_ends, write_ends
from tpuserve_server.core.system.form_records import FormRecords, VersionKey, new_file, shortened, version_key
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.server_state import HUNG
from tpuserve_server.core.terms.types import ServableId

# A suspect waits no longer for another one, which may hang: one hung model must not stop the others.
LONGEST_TURN_S: Final = 10.0


class SuspectTurn:
    """The turn of a thread. A thread that has it may take it again. Thread-safe.

    The lock guards `_depth` and `_since_s`. Others read `_since_s` without it, to know how long the turn lasts.
    """

    def __init__(self, longest_s: float = LONGEST_TURN_S) -> None:
        """Let others wait `longest_s` for the end of a turn."""
        # A thread that loads a version also runs it, so it takes the lock several times.
        self._lock = threading.RLock()
        self._longest_s = longest_s
        self._depth = 0
        self._since_s = 0.0

    def take(self) -> bool:
        """Take the turn, or return False if another thread has had it for too long. Blocks until then."""
        while True:
            wait_s = self._since_s + self._longest_s - time.monotonic()
            if self._lock.acquire(timeout=max(wait_s, 0.0)):
                self._depth += 1
                if self._depth == 1:
                    self._since_s = time.monotonic()
                return True
            if self._since_s + self._longest_s <= time.monotonic():
                return False

    def give_back(self) -> None:
        """End one `take` that returned True, on the same thread."""
        self._depth -= 1
        self._lock.release()


_log = logging.getLogger(__name__)

# Signals of faults in native code. A version that ran or loaded at that moment may be the reason.
_FAULTS: Final = frozenset(f"signal {name}" for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP"))
# SIGKILL comes from an operator or from the kernel, which is out of memory. It blames loads, because they take most
# memory, and new forms, but these not for sure. An operator who kills a busy server twice must not quarantine models.
_KILL: Final = "signal SIGKILL"

_SLOTS_FILE: Final = "journal.bin"
_ENDS_FILE: Final = "journal.json"
_SLOTS: Final = 4096
_SLOT_BYTES: Final = 512
# A slot has a byte for its load, one for each run at the same time, and a JSON text. Zeros fill the rest.
_LOAD, _RUNS, _TEXT = 0, 1, 65
NO_BYTE: Final = -1
_NO_SLOT: Final = (_SLOTS - 1) * _SLOT_BYTES


class Mark(NamedTuple):
    """The mark of one run: the byte that it sets, or NO_BYTE, and whether the run has the turn of the suspects.

    `record` is the record of a form that never completed a run before, or -1.
    """

    byte: int
    has_turn: bool
    record: int = -1


class Entry:
    """The marks of one loaded version. Thread-safe without a lock, because the device thread marks each run."""

    __slots__ = ("_forms", "_free", "_key", "_load_has_turn", "_slots", "_turn", "ends", "offset")

    def __init__(
        self, slots: mmap.mmap, offset: int, key: VersionKey, forms: FormRecords, ends: VersionEnds, turn: SuspectTurn
    ) -> None:
        """Use the slot at `offset`. A suspect takes `turn` while it loads or runs."""
        self.offset = offset
        self.ends = ends
        self._slots = slots
        # The bytes of runs that are free. `pop` and `append` of a list are atomic.
        self._free = list(range(offset + _RUNS, offset + _TEXT))
        self._key = key
        self._forms = forms
        forms.begin_load(key)
        self._turn = turn if ends.is_suspect() else None
        self._load_has_turn = False

    @property
    def is_suspect(self) -> bool:
        """Whether `begin_run` may block, because other suspects run."""
        return self._turn is not None

    def begin_load(self) -> None:
        """Mark the begin of the load."""
        self._load_has_turn = self._turn is not None and self._turn.take()
        self._slots[self.offset + _LOAD] = 1

    def end_load(self) -> None:
        """Mark the end of the load, on the same thread."""
        self._slots[self.offset + _LOAD] = 0
        if self._turn is not None and self._load_has_turn:
            self._turn.give_back()

    def begin_run(self) -> Mark:
        """Mark the begin of a run. Return what `end_run` needs."""
        has_turn = self._turn is not None and self._turn.take()
        return Mark(self._set_byte(), has_turn)

    def end_run(self, mark: Mark) -> None:
        """Mark the end of a run, on the same thread."""
        if mark.byte != NO_BYTE:
            self._slots[mark.byte] = 0
            self._free.append(mark.byte)
        if self._turn is not None and mark.has_turn:
            self._turn.give_back()

    def begin_form(self, form: str, *, is_trial: bool) -> Mark:
        """Mark the begin of a run of a form that this process has not completed. Return what `end_form` needs.

        A run before the version serves is a trial. It blames the version, because no client chose its form.

        Raises:
            InvalidArgument, FailedPrecondition: as VersionEnds.check_new_form.
        """
        form = shortened(form)
        if is_trial or self._forms.knows(self._key, form):
            return self.begin_run()
        self.ends.check_new_form(form)
        has_turn = self._turn is not None and self._turn.take()
        record = self._forms.begin(self._key, form)
        return Mark(self._set_byte() if record < 0 else NO_BYTE, has_turn, record)

    def end_form(self, mark: Mark, form: str, *, completed: bool) -> None:
        """Mark the end of such a run, on the same thread. The version knows a completed form from now on."""
        form = shortened(form)
        if mark.record >= 0:
            self._forms.end(mark.record, self._key, form, completed=completed)
        elif completed:
            self._forms.learn(self._key, form)
        self.end_run(mark)

    def _set_byte(self) -> int:
        try:
            byte = self._free.pop()
        except IndexError:  # More runs than marks: the marks of the others blame the version, too.
            return NO_BYTE
        self._slots[byte] = 1
        return byte


class Journal:
    """The journal of one process. Thread-safe.

    `_lock` guards `_free`.
    """

    def __init__(self, slots: mmap.mmap, forms: FormRecords, ends: Sequence[End], clock: Clock) -> None:
        """Use an empty file of slots, and the ends of earlier processes."""
        self._turn = SuspectTurn()
        self._slots = slots
        self._forms = forms
        self._ends = tuple(ends)
        self._clock = clock
        self._lock = threading.Lock()
        self._free = list(range(_NO_SLOT - _SLOT_BYTES, -1, -_SLOT_BYTES))

    @classmethod
    def open(cls, folder: Path, last_end: str, clock: Clock) -> Self:
        """Read what the last process left in `folder`, and start a new journal there.

        `last_end` is how that process ended, such as `signal SIGSEGV`, or "" for the first process. A damaged file is
        ignored.
        """
        ends = read_ends(folder / _ENDS_FILE)
        forms, running = FormRecords.open(folder)
        if last_end:
            now_s = clock.monotonic_s()
            ends += _blame(_read_slots(folder / _SLOTS_FILE), running, last_end, now_s)
            ends = write_ends(folder / _ENDS_FILE, ends, now_s)
        return cls(new_file(folder / _SLOTS_FILE, _SLOTS * _SLOT_BYTES), forms, ends, clock)

    def ends_of(self, servable_id: ServableId, fingerprint: str) -> list[End]:
        """Return the ends that blame a version with these files, or forms of its input, oldest first."""
        return [end for end in self._ends if end.is_of(servable_id, fingerprint)]

    @contextmanager
    def loading(self, servable_id: ServableId, fingerprint: str) -> Iterator[Entry]:
        """Record the load of a version. Its entry stays until `forget`, or until the load raises.

        Suspects load and run one at a time: if the process ends again, only one of them can be the reason. None waits
        for another that takes longer than LONGEST_TURN_S.

        Raises:
            Quarantined: loading or running the version ended the process too often.
        """
        ends = VersionEnds(servable_id, self.ends_of(servable_id, fingerprint), self._clock)
        ends.check_load()
        entry = self._new_entry(servable_id, fingerprint, ends)
        if entry.is_suspect:
            _log.warning("%s may have ended the process. It loads and runs alone for now: %s", servable_id, ends)
        if refusals := ends.describe_refusals():
            _log.warning("%s %s", servable_id, refusals)
        entry.begin_load()
        try:
            yield entry
        except BaseException:
            entry.end_load()
            self.forget(entry)
            raise
        entry.end_load()

    def forget(self, entry: Entry) -> None:
        """Remove the entry of a version that has ended."""
        with self._lock:
            if entry.offset != _NO_SLOT:
                self._slots[entry.offset : entry.offset + _SLOT_BYTES] = bytes(_SLOT_BYTES)
                self._free.append(entry.offset)

    def _new_entry(self, servable_id: ServableId, fingerprint: str, ends: VersionEnds) -> Entry:
        text = json.dumps([servable_id.name, servable_id.version, fingerprint]).encode()
        with self._lock:
            # The last slot takes the marks of names that do not fit, and of more versions than slots. It has no name.
            offset = self._free.pop() if self._free and len(text) <= _SLOT_BYTES - _TEXT else _NO_SLOT
            if offset != _NO_SLOT:
                self._slots[offset + _TEXT : offset + _TEXT + len(text)] = text
        return Entry(self._slots, offset, version_key(text), self._forms, ends, self._turn)


class _Slot(NamedTuple):
    """A version at the end of a process."""

    name: str
    version: int
    fingerprint: str
    loads: bool
    runs: bool


def _read_slots(file: Path) -> dict[VersionKey, _Slot]:
    """Return the versions that the last process had loaded or was loading."""
    try:
        content = file.read_bytes()
    except OSError:
        return {}
    slots = {}
    for offset in range(0, min(_NO_SLOT, len(content)), _SLOT_BYTES):
        slot = content[offset : offset + _SLOT_BYTES]
        text = slot[_TEXT:].rstrip(b"\0")
        # A damaged slot is no slot.
        with suppress(ValueError, TypeError):
            name, version, fingerprint = json.loads(text)
            slots[version_key(text)] = _Slot(name, version, fingerprint, bool(slot[_LOAD]), any(slot[_RUNS:_TEXT]))
    return slots


def _blame(
    slots: Mapping[VersionKey, _Slot], running: Sequence[tuple[VersionKey, str]], how: str, now_s: float
) -> list[End]:
    """Return an end for each form or version that may have ended the process."""
    if how not in _FAULTS and how not in (_KILL, HUNG) and not _is_exit_of_a_model(how):
        return []
    # The drain before the end with a hung run has ended all other runs, but no loads.
    loads = [] if how == HUNG else [slot for slot in slots.values() if slot.loads]
    forms = [(slots[key], form) for key, form in running if key in slots]
    is_sure = len(forms) == 1 and not loads and how != _KILL
    ends = [End(*slot[:3], "running", how, now_s, form, is_sure) for slot, form in forms]
    if forms and how != _KILL:
        return ends
    ends += [End(*slot[:3], "loading", how, now_s) for slot in loads]
    if how != _KILL:
        runs = [slot for slot in slots.values() if slot.runs and slot not in loads]
        ends += [End(*slot[:3], "running", how, now_s) for slot in runs]
    return ends


def _is_exit_of_a_model(how: str) -> bool:
    """Return whether native code may have called exit(). The server itself exits with 0 or 1."""
    return how.startswith("exit code ") and how not in ("exit code 0", "exit code 1")
