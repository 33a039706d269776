"""Decides which version to load or unload next: a pure function of the versions' states.

The policy preserves availability (tensorflow/serving, core/availability_preserving_policy.cc). It unloads an old
version only after another one serves, unless no version should be served.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_server.core.terms.types import State


class Action(enum.Enum):
    """A step for a version."""

    LOAD = enum.auto()
    UNLOAD = enum.auto()


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """A version of one model as the policy sees it."""

    version: int
    state: State
    is_aspired: bool


def next_action(versions: Sequence[VersionSnapshot]) -> tuple[Action, int] | None:
    """Return the next step for one model, or None if there is no step to take now.

    Unload the lowest version that is no longer aspired, unless it is the only one that serves while another is aspired.
    Otherwise load the highest aspired version that has not started.
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
