"""Progress of a rollout on a terminal, a line for each finished step."""

from typing import Final

from rich.console import Console
from rich.markup import escape

from tpuserve_loadtests.rollout.procedure import Step, StepState

_STYLES: Final = {StepState.FAILED: "red", StepState.PASSED: "green", StepState.DONE: "green"}
_STATE_WIDTH: Final = max(map(len, StepState))
_NAME_WIDTH: Final = 16


def print_step(step: Step, console: Console) -> None:
    """Print a step as one line."""
    style = _STYLES.get(step.state, "default")
    state = f"[{style}]{step.state:{_STATE_WIDTH}}[/{style}]"
    console.print(f"  {state}  {step.name:{_NAME_WIDTH}}  {escape(step.detail)}", highlight=False, soft_wrap=True)
