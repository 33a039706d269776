"""Which version to load or unload next: a pure function of what is there.

Availability preserving (tensorflow/serving, core/availability_preserving_policy.cc): an old version goes only once
another one serves in its place, unless nothing is to be served at all.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_server.core.types import State


class Action(enum.Enum):
    """What to do with a version."""

    LOAD = enum.auto()
    UNLOAD = enum.auto()


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """A version of one model as the policy sees it."""

    version: int
    state: State
    is_aspired: bool


def next_action(versions: Sequence[VersionSnapshot]) -> tuple[Action, int] | None:
    """The next step for one model, or None when there is nothing to do now.

    Unload the lowest version that is no longer aspired, unless it is the only one serving while another is meant to;
    else load the highest aspired version that has not started.
    """
    serving = [v for v in versions if v.state is State.AVAILABLE]
    retired = [v.version for v in serving if not v.is_aspired]
    aspires = any(v.is_aspired for v in versions)
    if retired and (len(serving) > 1 or not aspires):
        return Action.UNLOAD, min(retired)
    waiting = [v.version for v in versions if v.is_aspired and v.state is State.START]
    if waiting:
        return Action.LOAD, max(waiting)
    return None
