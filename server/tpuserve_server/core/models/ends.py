"""Ends: which versions and forms of input may have ended earlier processes, and how long the server refuses them.

A form is a signature with the shapes of its inputs. A run of a form that never completed before blames this form alone.
Every other end blames the version.
"""

import dataclasses
import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpuserve_server.core.terms.deadline import Clock, clock_time
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, Quarantined, counted
from tpuserve_server.core.terms.server_state import HUNG
from tpuserve_server.core.terms.types import ServableId

# Ends that quarantine a version, each within WINDOW_S after the one before, or after the end of its pause.
MOST_ENDS: Final = 2
WINDOW_S: Final = 3600
# Ends by forms of one version within WINDOW_S. After them it runs only known forms.
MOST_FORM_ENDS: Final = 4
# First and longest pause before the next try. Each further end doubles it.
VERSION_PAUSES_S: Final = (300, 3600)
FORM_PAUSES_S: Final = (3600, 86_400)

_KEPT_S: Final = FORM_PAUSES_S[1] + WINDOW_S
_MOST_KEPT: Final = 1024
_MOST_NAMED: Final = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process that a version may have caused, or one `form` of its input if this is not empty.

    `at_s` is the system's monotonic time. `is_sure`: nothing else in the journal may have been the reason.
    """

    name: str
    version: int
    fingerprint: str
    activity: str
    how: str
    at_s: float
    form: str = ""
    is_sure: bool = False

    def is_of(self, servable_id: ServableId, fingerprint: str) -> bool:
        """Return whether it blames this version with these files."""
        return (self.name, self.version, self.fingerprint) == (servable_id.name, servable_id.version, fingerprint)


class VersionEnds:
    """The ends that blame one version or forms of its input. Immutable, except that time passes."""

    def __init__(self, servable_id: ServableId, ends: Iterable[End], clock: Clock) -> None:
        """Judge `ends` of the version, oldest first."""
        self._id = servable_id
        self._clock = clock
        by_form: dict[str, list[End]] = {}
        for end in ends:
            by_form.setdefault(end.form, []).append(end)
        self._of_version = by_form.pop("", [])
        self._of_forms = by_form
        self._free_s = _paused_until_s(self._of_version, VERSION_PAUSES_S)
        self._form_free_s = {form: _paused_until_s(ends, FORM_PAUSES_S) for form, ends in by_form.items()}
        times_s = sorted({end.at_s for ends in by_form.values() for end in ends})
        is_attacked = len(times_s) >= MOST_FORM_ENDS
        self._only_known_until_s = times_s[-MOST_FORM_ENDS] + WINDOW_S if is_attacked else 0.0

    def is_suspect(self) -> bool:
        """Return whether the version may have ended a process within WINDOW_S, so that it loads and runs alone."""
        return bool(self._of_version) and self._clock.monotonic_s() - self._free_s <= WINDOW_S

    def check_load(self) -> None:
        """Check that the version may be loaded.

        Raises:
            Quarantined: with the time of the next try.
        """
        wait_s = self._free_s - self._clock.monotonic_s()
        if wait_s <= 0:
            return
        last = self._of_version[-1]
        raise Quarantined(
            f"quarantined: the server's process ended {len(self._of_version)} times while this version was loading or "
            f"running, last while {last.activity} ({last.how}). The server tries it again at {clock_time(wait_s)}, or "
            f"at once when its files change",
            wait_s,
        )

    def check_new_form(self, form: str) -> None:
        """Check that the version may run a form that it has never completed.

        Raises:
            InvalidArgument: a run of the form ended or hung a process.
            FailedPrecondition: so did other forms, and the version runs only known ones for now.
        """
        now_s = self._clock.monotonic_s()
        wait_s = self._form_free_s.get(form, now_s) - now_s
        if wait_s > 0:
            raise InvalidArgument(
                f"Model {self._id.name} version {self._id.version} refuses {form}: a run with these input shapes "
                f"{_effect(self._of_forms[form][-1])}. Send other shapes. The server refuses these until "
                f"{clock_time(wait_s)}"
            )
        wait_s = self._only_known_until_s - now_s
        if wait_s > 0:
            raise FailedPrecondition(
                f"Model {self._id.name} version {self._id.version} refuses {form}: it has not run these input shapes "
                f"before, and {len(self._of_forms)} other new ones ended or hung the server's process. Send shapes "
                f"that other requests use, or wait until {clock_time(wait_s)}"
            )

    def describe_refusals(self) -> str:
        """Return which forms the version refuses now, for people, or "" if none."""
        now_s = self._clock.monotonic_s()
        refused = [
            f"{form}: a run {_effect(ends[-1])}"
            for form, ends in self._of_forms.items()
            if self._form_free_s[form] > now_s
        ]
        shown = [f"refuses {one}" for one in refused[-_MOST_NAMED:]]
        if len(refused) > len(shown):
            shown.append(f"refuses {len(refused) - len(shown)} more input shapes")
        if (wait_s := self._only_known_until_s - now_s) > 0:
            shown.append(f"runs only input shapes that it has run before until {clock_time(wait_s)}")
        return "; ".join(shown)

    def __str__(self) -> str:
        """Describe the last end that blames the version, for the log."""
        last = self._of_version[-1]
        return f"{counted(len(self._of_version), 'end')}, last while {last.activity} ({last.how})"


def read_ends(file: Path) -> list[End]:
    """Return the ends in a file, or none if it is missing or damaged."""
    try:
        found = json.loads(file.read_text())
        if not all(isinstance(one["at_s"], float) and isinstance(one["form"], str) for one in found):
            raise TypeError
        return [End(**fields) for fields in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError):
        _log.warning("The record of earlier ends of the process is damaged. The server starts without it")
        return []


def write_ends(file: Path, ends: Sequence[End], now_s: float) -> list[End]:
    """Replace the file by the ends that still matter, and return them."""
    kept = [end for end in ends if now_s - end.at_s <= _KEPT_S][-_MOST_KEPT:]
    new = file.with_suffix(".new")
    try:
        new.write_text(json.dumps([dataclasses.asdict(end) for end in kept]))
        os.replace(new, file)
    except OSError:
        _log.exception("The ends of earlier processes cannot be written. The next process does not know them")
    return kept


def _paused_until_s(ends: Sequence[End], pauses_s: tuple[int, int]) -> float:
    """Return when the pause after the last of these ends is over: at once if they are too few for a pause."""
    points, until_s = 0, float("-inf")
    for end in ends:
        points = _points(end) + (points if end.at_s - until_s <= WINDOW_S else 0)
        until_s = end.at_s
        if points >= MOST_ENDS:
            until_s += min(pauses_s[0] << (points - MOST_ENDS), pauses_s[1])
    return until_s


def _points(end: End) -> int:
    """Return the part of MOST_ENDS that an end counts: one sure end of a form is enough."""
    return MOST_ENDS if end.form and end.is_sure else 1


def _effect(end: End) -> str:
    return "hung" if end.how == HUNG else f"ended the server's process ({end.how})"
