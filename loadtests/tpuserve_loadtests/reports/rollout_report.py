"""A rollout: each step as it ends, and what the whole came to."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from tpuserve_loadtests.rollout.procedure import Outcome, Step, StepState

_STYLES: Final = {StepState.FAILED: "red", StepState.PASSED: "green", StepState.DONE: "green"}
_STATE_WIDTH: Final = max(map(len, StepState))
_NAME_WIDTH: Final = 16


def print_step(step: Step, console: Console) -> None:
    """One line."""
    style = _STYLES.get(step.state, "default")
    state = f"[{style}]{step.state:{_STATE_WIDTH}}[/{style}]"
    console.print(f"  {state}  {step.name:{_NAME_WIDTH}}  {escape(step.detail)}", highlight=False, soft_wrap=True)


def statement(outcome: Outcome, model: str, live: int, new: int, state: str) -> str:
    """The end in words. `state`: where the labels stand."""
    match outcome:
        case Outcome.PLANNED:
            return "Nothing was changed: this was a dry run. --execute does it."
        case Outcome.PROMOTED:
            return f"{model}: version {new} is live."
        case Outcome.REFUSED:
            return f"{model}: version {new} was refused; no label was moved, version {live} is live."
        case Outcome.MOVED_BACK:
            return f"{model}: the labels are where they were, version {live} is live."
        case Outcome.STUCK:
            return f"{model}: THE LABELS COULD NOT BE MOVED BACK. {state}. Set them in the file and reload it."


def rollout_document(
    outcome: Outcome, exit_code: int, steps: Sequence[Step], *, model: str, live: int, new: int, state: str
) -> dict[str, Any]:  # for JSON
    """The same for programs."""
    return {
        "model": model,
        "from": live,
        "to": new,
        "outcome": outcome,
        "exit_code": exit_code,
        "labels": state,
        "steps": [asdict(step) for step in steps],
    }
