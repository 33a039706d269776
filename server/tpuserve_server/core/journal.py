"""Journal: which versions load or run now, in a file that survives the process, and which of them ended it.

The next process reads the file and blames the versions that were loading or running. A version that has ended
MOST_ENDS processes within WINDOW_S is quarantined: it is not loaded again until its files change, or until the whole
server starts anew.
"""

import dataclasses
import json
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from tpuserve_server.core.replacement import HUNG
from tpuserve_server.core.suspect_turn import SuspectTurn
from tpuserve_server.core.types import ServableId

MOST_ENDS: Final = 2
WINDOW_S: Final = 3600.0

# Signals of faults in native code. A version that ran or loaded at that moment may be the reason.
_FAULTS: Final = frozenset(f"signal {name}" for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP"))
# SIGKILL comes from an operator or from the kernel, which is out of memory. It blames only a load: loads take most
# memory, and an operator who kills a busy server twice must not quarantine its models.
_KILL: Final = "signal SIGKILL"

_SLOTS_FILE: Final = "journal.bin"
_ENDS_FILE: Final = "journal.json"
_SLOTS: Final = 4096
_SLOT_BYTES: Final = 512
# A slot has a byte for its load, one for each run at the same time, and a JSON text. Zeros fill the rest.
_LOAD, _RUNS, _TEXT = 0, 1, 65
NO_BYTE: Final = -1
_NO_SLOT: Final = (_SLOTS - 1) * _SLOT_BYTES


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process that a version may have caused. `at_s` is the system's monotonic time."""

    name: str
    version: int
    fingerprint: str
    activity: str
    how: str
    at_s: float


class Mark(NamedTuple):
    """The mark of one run: the byte that it sets, or NO_BYTE, and whether the run has the turn of the suspects."""

    byte: int
    has_turn: bool


class Entry:
    """The marks of one loaded version. Thread-safe without a lock, because the device thread marks each run."""

    __slots__ = ("_free", "_load_has_turn", "_slots", "_turn", "offset")

    def __init__(self, slots: mmap.mmap, offset: int, turn: SuspectTurn | None = None) -> None:
        """Use the slot at `offset`. A suspect takes `turn` while it loads or runs."""
        self.offset = offset
        self._slots = slots
        # The bytes of runs that are free. `pop` and `append` of a list are atomic.
        self._free = list(range(offset + _RUNS, offset + _TEXT))
        self._turn = turn
        self._load_has_turn = False

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
        try:
            byte = self._free.pop()
        except IndexError:  # More runs than marks: the marks of the others blame the version, too.
            return Mark(NO_BYTE, has_turn)
        self._slots[byte] = 1
        return Mark(byte, has_turn)

    def end_run(self, mark: Mark) -> None:
        """Mark the end of a run, on the same thread."""
        if mark.byte != NO_BYTE:
            self._slots[mark.byte] = 0
            self._free.append(mark.byte)
        if self._turn is not None and mark.has_turn:
            self._turn.give_back()


class Journal:
    """The journal of one process. Thread-safe.

    `_lock` guards `_free`.
    """

    def __init__(self, slots: mmap.mmap, ends: Sequence[End]) -> None:
        """Use an empty file of slots, and the ends of earlier processes."""
        self._turn = SuspectTurn()
        self._slots = slots
        self._ends = tuple(ends)
        self._lock = threading.Lock()
        self._free = list(range(_NO_SLOT - _SLOT_BYTES, -1, -_SLOT_BYTES))

    @classmethod
    def open(cls, folder: Path, last_end: str) -> Self:
        """Read what the last process left in `folder`, and start a new journal there.

        `last_end` is how that process ended, such as `signal SIGSEGV`, or "" for the first process.
        """
        ends = _read_ends(folder / _ENDS_FILE)
        if last_end:
            ends = [*ends, *_blame(folder / _SLOTS_FILE, last_end)]
            _write_ends(folder / _ENDS_FILE, ends)
        with (folder / f"{_SLOTS_FILE}.new").open("w+b") as file:
            file.truncate(_SLOTS * _SLOT_BYTES)
            slots = mmap.mmap(file.fileno(), _SLOTS * _SLOT_BYTES)
        os.replace(folder / f"{_SLOTS_FILE}.new", folder / _SLOTS_FILE)
        return cls(slots, ends)

    def ends_of(self, servable_id: ServableId, fingerprint: str) -> list[End]:
        """Return the recent ends that a version with these files may have caused."""
        return [
            end
            for end in self._ends
            if (end.name, end.version, end.fingerprint) == (servable_id.name, servable_id.version, fingerprint)
            and time.monotonic() - end.at_s < WINDOW_S
        ]

    @contextmanager
    def loading(self, servable_id: ServableId, fingerprint: str, *, is_suspect: bool = False) -> Iterator[Entry]:
        """Record the load of a version. Its entry stays until `forget`, or until the load raises.

        Suspects load and run one at a time: if the process ends again, only one of them can be the reason. None waits
        for another that takes longer than LONGEST_TURN_S.
        """
        entry = self._new_entry(servable_id, fingerprint, self._turn if is_suspect else None)
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

    def _new_entry(self, servable_id: ServableId, fingerprint: str, turn: SuspectTurn | None) -> Entry:
        text = json.dumps([servable_id.name, servable_id.version, fingerprint]).encode()
        with self._lock:
            # The last slot takes the marks of names that do not fit, and of more versions than slots. It has no name.
            offset = self._free.pop() if self._free and len(text) <= _SLOT_BYTES - _TEXT else _NO_SLOT
            if offset != _NO_SLOT:
                self._slots[offset + _TEXT : offset + _TEXT + len(text)] = text
        return Entry(self._slots, offset, turn)


def _blame(file: Path, how: str) -> Iterator[End]:
    """Yield an end for each version that was loading or running when the process ended."""
    if how not in _FAULTS and how not in (_KILL, HUNG) and not _is_exit_of_a_model(how):
        return
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    for offset in range(0, min(_NO_SLOT, len(content)), _SLOT_BYTES):
        slot = content[offset : offset + _SLOT_BYTES]
        activity = ""
        # The drain before the end with a hung run has ended all other runs, but no loads.
        if slot[_LOAD] and how != HUNG:
            activity = "loading"
        elif any(slot[_RUNS:_TEXT]) and how != _KILL:
            activity = "running"
        if activity:
            name, version, fingerprint = json.loads(slot[_TEXT:].rstrip(b"\0"))
            yield End(name, version, fingerprint, activity, how, time.monotonic())


def _is_exit_of_a_model(how: str) -> bool:
    """Return whether native code may have called exit(). The server itself exits with 0 or 1."""
    return how.startswith("exit code ") and how not in ("exit code 0", "exit code 1")


def _read_ends(file: Path) -> list[End]:
    try:
        return [End(**fields) for fields in json.loads(file.read_text())]
    except FileNotFoundError:
        return []


def _write_ends(file: Path, ends: Sequence[End]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps([dataclasses.asdict(end) for end in ends]))
    os.replace(new, file)
