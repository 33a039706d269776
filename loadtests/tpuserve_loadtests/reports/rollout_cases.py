"""A rollout as cases for CI systems: each of its steps, those that were not reached, too."""

from collections.abc import Sequence

from tpuserve_loadtests.rendering.junit import Case
from tpuserve_loadtests.rollout.procedure import Step, StepState


def rollout_cases(planned: Sequence[str], steps: Sequence[Step]) -> list[Case]:
    """`planned`: names of steps, in order. Behind them stands what nobody plans: moves back, and a signal."""
    became = {step.name: step for step in steps}
    others = [step for name, step in became.items() if name not in planned]
    return [*(_case(name, became.get(name)) for name in planned), *(_case(step.name, step) for step in others)]


def _case(name: str, step: Step | None) -> Case:
    if step is None:
        return Case(name, skipped="it was not reached")
    if step.state is StepState.FAILED:
        return Case(name, step.detail or "it failed", seconds=step.seconds)
    unjudged = step.state in (StepState.PLANNED, StepState.SKIPPED)
    return Case(name, skipped=f"{step.state}: {step.detail}" if unjudged else "", seconds=step.seconds)
