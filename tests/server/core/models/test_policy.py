import pytest

from tpuserve_server.core.models.policy import Action, VersionSnapshot, next_action
from tpuserve_server.core.terms.types import State

START, LOADING, AVAILABLE, UNLOADING, END = State.START, State.LOADING, State.AVAILABLE, State.UNLOADING, State.END


@pytest.mark.parametrize(
    ("versions", "step"),
    [
        ([], None),
        ([(1, START, True)], (Action.LOAD, 1)),
        ([(1, START, True), (2, START, True)], (Action.LOAD, 2)),
        # The old one stays until the new one serves.
        ([(1, AVAILABLE, False), (2, START, True)], (Action.LOAD, 2)),
        ([(1, AVAILABLE, False), (2, LOADING, True)], None),
        ([(1, AVAILABLE, False), (2, AVAILABLE, True)], (Action.UNLOAD, 1)),
        # The new one failed, so the old one keeps serving.
        ([(1, AVAILABLE, False), (2, END, True)], None),
        # Two old ones: the lowest may go, one remains.
        ([(1, AVAILABLE, False), (2, AVAILABLE, False), (3, START, True)], (Action.UNLOAD, 1)),
        # No version is aspired any more.
        ([(1, AVAILABLE, False)], (Action.UNLOAD, 1)),
        ([(1, UNLOADING, False), (2, AVAILABLE, True)], None),
        ([(1, END, False)], None),
    ],
)
def test_next_action(versions: list[tuple[int, State, bool]], step: tuple[Action, int] | None) -> None:
    assert next_action([VersionSnapshot(*version) for version in versions]) == step
