"""Pipeline: the order in which the steps of an ensemble run, and the steps that an output needs. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeAlias

from tpuserve_server.core.ensemble import Ensemble, EnsembleStep, find_needs, order_steps

# For each step, the positions of the steps that it needs, all of them lower than its own.
Needs: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The positions of the steps to run, in order.

    `is_chain`: each of them needs the one before it, so that no two can run at the same time.
    """

    positions: tuple[int, ...]
    is_chain: bool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps in an order in which each follows those that it needs. `whole` runs all of them."""

    steps: tuple[EnsembleStep, ...]
    needs: Needs
    outputs: tuple[str, ...]
    whole: Plan

    @classmethod
    def of(cls, ensemble: Ensemble) -> Self:
        """Return the pipeline of an ensemble that has passed `core.ensemble_rules`."""
        steps = order_steps(ensemble.steps)
        positions = {step.number: position for position, step in enumerate(steps)}
        numbers = find_needs(steps)
        needs = tuple(tuple(sorted(positions[number] for number in numbers[step.number])) for step in steps)
        return cls(steps, needs, ensemble.outputs, _plan(range(len(steps)), needs))

    def plan(self, outputs: Collection[str]) -> Plan:
        """Return the plan for some or all of the outputs, without repetition."""
        if len(outputs) == len(self.outputs):
            return self.whole
        chosen: set[int] = set()
        for position in reversed(self.whole.positions):
            if position in chosen or not self._produces(position).isdisjoint(outputs):
                chosen.update((position, *self.needs[position]))
        return _plan(sorted(chosen), self.needs)

    def _produces(self, position: int) -> frozenset[str]:
        return frozenset(self.steps[position].produces)


def _plan(positions: Sequence[int], needs: Needs) -> Plan:
    is_chain = all(before in needs[position] for before, position in pairwise(positions))
    return Plan(tuple(positions), is_chain)
