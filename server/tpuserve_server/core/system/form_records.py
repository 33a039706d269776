"""FormRecords: the forms of input that a process runs for the first time, and those that have completed a run.

They are in a file that survives the process. The next process reads which forms were running at the end, and takes over
the completed ones.
"""

import hashlib
import mmap
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NewType, Self

_FILE: Final = "forms.bin"
_RECORDS: Final = 4096
_RECORD_BYTES: Final = 256
# A record has its state, the key of its version and the form. Zeros fill the rest, and a free record.
_STATE, _KEY, _TEXT = 0, 1, 17
_RUNNING, _KNOWN = 1, 2
# Records that only running forms take, so that the next process can blame them.
_RESERVED: Final = 256
# Clients choose forms, so a version keeps only its first.
MOST_KNOWN: Final = 256

# A version with its files. Each version has the same key in every process.
VersionKey = NewType("VersionKey", bytes)


def version_key(text: bytes) -> VersionKey:
    """Return the key of the version that `text` names."""
    return VersionKey(hashlib.blake2b(text, digest_size=_TEXT - _KEY).digest())


def shortened(form: str) -> str:
    """Return a form that fits a record. A long one ends with its hash."""
    text = form.encode()
    if len(text) <= _RECORD_BYTES - _TEXT:
        return form
    return f"{text[:160].decode(errors='ignore')}… #{hashlib.blake2b(text, digest_size=16).hexdigest()}"


class FormRecords:
    """The records of one process. Thread-safe; `_lock` guards all fields.

    `_known` has the record of each completed form, by version. Versions that began to load first come first.
    """

    def __init__(self, records: mmap.mmap, known: Iterable[tuple[VersionKey, str]]) -> None:
        """Use an empty file, and write the `known` forms to it."""
        self._records = records
        self._lock = threading.Lock()
        self._free = list(range((_RECORDS - 1) * _RECORD_BYTES, -1, -_RECORD_BYTES))
        self._known: dict[VersionKey, dict[str, int]] = {}
        for key, form in known:
            self.learn(key, form)

    @classmethod
    def open(cls, folder: Path) -> tuple[Self, list[tuple[VersionKey, str]]]:
        """Take over what the last process left in `folder`. Return also the forms that were running at its end."""
        known: list[tuple[VersionKey, str]] = []
        running: list[tuple[VersionKey, str]] = []
        try:
            content = (folder / _FILE).read_bytes()
        except OSError:
            content = b""
        for offset in range(0, len(content), _RECORD_BYTES):
            record = content[offset : offset + _RECORD_BYTES]
            if record[_STATE] not in (_RUNNING, _KNOWN):
                continue
            # A damaged record is no record.
            with suppress(UnicodeDecodeError):
                found = (VersionKey(record[_KEY:_TEXT]), record[_TEXT:].rstrip(b"\0").decode())
                (known if record[_STATE] == _KNOWN else running).append(found)
        return cls(new_file(folder / _FILE, _RECORDS * _RECORD_BYTES), known), list(dict.fromkeys(running))

    def begin_load(self, key: VersionKey) -> None:
        """Record that a version begins to load, so that others lose their known forms first."""
        with self._lock:
            self._known[key] = self._known.pop(key, {})

    def knows(self, key: VersionKey, form: str) -> bool:
        """Return whether a run of the form has completed. Takes no lock."""
        return form in self._known.get(key, ())

    def begin(self, key: VersionKey, form: str) -> int:
        """Record that a run of a form begins. Return its record for `end`, or -1 if none is free."""
        with self._lock:
            return self._write(key, form, _RUNNING) if self._free else -1

    def end(self, record: int, key: VersionKey, form: str, *, completed: bool) -> None:
        """Record the end of the run. A completed form is known from now on."""
        with self._lock:
            if completed and self._has_room(key, form):
                self._records[record + _STATE] = _KNOWN
                self._known[key][form] = record
            else:
                self._clear(record)

    def learn(self, key: VersionKey, form: str) -> None:
        """Record a completed form whose run has no record."""
        with self._lock:
            if self._has_room(key, form):
                self._known[key][form] = self._write(key, form, _KNOWN)

    # The methods below are called with the lock held.

    def _has_room(self, key: VersionKey, form: str) -> bool:
        """Return whether to keep the form. The version that began to load first may have to forget its forms."""
        forms = self._known.setdefault(key, {})
        if form in forms or len(forms) >= MOST_KNOWN:
            return False
        if len(self._free) <= _RESERVED:
            oldest = next(iter(self._known))
            if oldest == key:
                return False
            for record in self._known.pop(oldest).values():
                self._clear(record)
        return len(self._free) > _RESERVED

    def _write(self, key: VersionKey, form: str, state: int) -> int:
        record = self._free.pop()
        text = form.encode()
        self._records[record + _KEY : record + _TEXT] = key
        self._records[record + _TEXT : record + _TEXT + len(text)] = text
        # Last: a process that ends before leaves a free record.
        self._records[record + _STATE] = state
        return record

    def _clear(self, record: int) -> None:
        self._records[record : record + _RECORD_BYTES] = bytes(_RECORD_BYTES)
        self._free.append(record)


def new_file(file: Path, size_bytes: int) -> mmap.mmap:
    """Replace a file by one of zeros, and map it into memory. Its pages survive every end of the process."""
    new = file.with_suffix(".new")
    with new.open("w+b") as opened:
        opened.truncate(size_bytes)
        mapped = mmap.mmap(opened.fileno(), size_bytes)
    os.replace(new, file)
    return mapped
