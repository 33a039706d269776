"""Ensemble: a pipeline of models as its configuration describes it. Pure; knows no signature and no version."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ModelSpec

# Most names of a list in a message.
_MOST_NAMED = 8

# Pairs of an input or output in a step's signature, and a tensor of the ensemble.
Connections: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """A model in an ensemble. `inputs` maps its inputs to the tensors that they take, `outputs` to those they produce.

    `number` is its position in the configuration, from 1, for messages.
    """

    number: int
    model: ModelSpec
    inputs: Connections
    outputs: Connections

    @property
    def takes(self) -> tuple[str, ...]:
        """The tensors that the step needs."""
        return tuple(tensor for _, tensor in self.inputs)

    @property
    def produces(self) -> tuple[str, ...]:
        """The tensors that the step produces."""
        return tuple(tensor for _, tensor in self.outputs)

    def __str__(self) -> str:
        return f"step {self.number} ({self.model.name})"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The steps of an ensemble, in the order of the configuration. No field has been checked yet.

    `declared_inputs` and `declared_outputs` are empty if the configuration leaves them to the connections.
    """

    steps: tuple[EnsembleStep, ...]
    declared_inputs: tuple[str, ...] = ()
    declared_outputs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name in the ensemble: of models, labels, and tensors."""
        connections = (pair for step in self.steps for pair in (*step.inputs, *step.outputs))
        labels = (step.model.version_label or "" for step in self.steps)
        return (
            *sorted(self.models),
            *labels,
            *chain.from_iterable(connections),
            *self.declared_inputs,
            *self.declared_outputs,
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors of a request: the declared ones, or those that a step takes and no step produces."""
        return self.declared_inputs or _without(self.taken, self.produced)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors of a response: the declared ones, or those that a step produces and no step takes."""
        return self.declared_outputs or _without(self.produced, self.taken)

    @property
    def models(self) -> frozenset[str]:
        """The names of the models of the steps."""
        return frozenset(step.model.name for step in self.steps)

    @property
    def taken(self) -> tuple[str, ...]:
        """Every tensor that a step takes, without repetition."""
        return tuple(dict.fromkeys(tensor for step in self.steps for tensor in step.takes))

    @property
    def produced(self) -> tuple[str, ...]:
        """Every tensor that a step produces, without repetition."""
        return tuple(dict.fromkeys(tensor for step in self.steps for tensor in step.produces))


def order_steps(steps: Sequence[EnsembleStep]) -> tuple[EnsembleStep, ...]:
    """Return the steps so that each follows the steps that it needs.

    Raises:
        InvalidArgument: steps need each other. The message names them, each after one that it needs.
    """
    by_number = {step.number: step for step in steps}
    try:
        return tuple(by_number[number] for number in TopologicalSorter(find_needs(steps)).static_order())
    except CycleError as error:
        named = name_some([str(by_number[number]) for number in error.args[1]], " -> ")
        raise InvalidArgument(f"its steps form a cycle: {named}") from None


def find_needs(steps: Sequence[EnsembleStep]) -> Mapping[int, Collection[int]]:
    """Return, by number of a step, the numbers of the steps that produce a tensor that it takes."""
    producers = {tensor: step.number for step in steps for tensor in step.produces}
    return {
        step.number: dict.fromkeys(producers[tensor] for tensor in step.takes if tensor in producers) for step in steps
    }


def name_some(names: Sequence[str], separator: str = ", ") -> str:
    """Join names for a message, and omit most of a long list."""
    return separator.join(names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], "…"])


def _without(tensors: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    others = frozenset(excluded)
    return tuple(tensor for tensor in tensors if tensor not in others)
