"""EnsembleSteps: holds the versions that serve an ensemble's steps, and runs requests through them."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeAlias

from tpuserve_server.core.acquired import AcquiredModel
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.ensemble import Ensemble, EnsembleStep, find_needs, order_steps
from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.task_times import TaskTimes
from tpuserve_server.core.types import Array, ModelSpec, Signature, Tensors
from tpuserve_server.ensembles.signature import BoundStep, connect

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


# Holds the version and signature that a spec resolves to. Raises ServingError.
Acquire: TypeAlias = Callable[[ModelSpec], AcquiredModel]


class EnsembleSteps:
    """The steps of one ensemble. Thread-safe.

    `_checked` is replaced, and never changed: the steps' signatures that fit the connections last, in the order of the
    pipeline, and the ensemble's signature over them.
    """

    def __init__(self, name: str, ensemble: Ensemble, acquire: Acquire) -> None:
        """Take the versions of the steps from `acquire`. `name` is the ensemble's, for messages."""
        self._name = name
        self.ensemble = ensemble
        self._pipeline = Pipeline.of(ensemble)
        self._acquire = acquire
        self._checked: tuple[tuple[Signature, ...], Signature] | None = None

    def hold(self) -> "HeldEnsemble":
        """Implement Steps.hold."""
        models: list[AcquiredModel] = []
        try:
            for step in self._pipeline.steps:
                models.append(self._acquire(step.model))  # noqa: PERF401 - an error must release the earlier ones
            signature = self._find_signature(models)
        except BaseException as error:
            _release(models)
            if isinstance(error, ServingError) and len(models) < len(self._pipeline.steps):
                raise self._explained(error, self._pipeline.steps[len(models)]) from None
            raise
        return HeldEnsemble(self._name, self._pipeline, models, signature)

    def _explained(self, error: ServingError, step: EnsembleStep) -> ServingError:
        """Return the error for a client of the ensemble if `step` could not be held."""
        message = f"Ensemble {self._name}: {step} cannot run: {error.message}"
        # The client named the ensemble correctly, so neither error is the client's. The version may return.
        return Unavailable(message) if isinstance(error, NotFound | InvalidArgument) else error.with_message(message)

    def _find_signature(self, models: Sequence[AcquiredModel]) -> Signature:
        """Return the ensemble's signature. Checks the connections only if a step has another version than before."""
        checked = self._checked
        if checked is not None and all(map(_is_same, checked[0], models)):
            return checked[1]
        steps = zip(self._pipeline.steps, models, strict=True)
        try:
            signature = connect(
                self.ensemble, [BoundStep(step, model.servable_id, model.signature) for step, model in steps]
            )
        except FailedPrecondition as error:
            raise FailedPrecondition(f"Ensemble {self._name}: {error.message}") from None
        self._checked = (tuple(model.signature for model in models), signature)
        return signature


class HeldEnsemble:
    """The versions of an ensemble's steps, held for one request."""

    __slots__ = ("_models", "_name", "_pipeline", "signature")

    def __init__(self, name: str, pipeline: Pipeline, models: Sequence[AcquiredModel], signature: Signature) -> None:
        """Own `models`, one for each step of `pipeline`."""
        self._name = name
        self._pipeline = pipeline
        self._models = models
        self.signature = signature

    @property
    def labels(self) -> tuple[str, ...]:
        """Implement HeldSteps.labels."""
        return next((model.labels for model in reversed(self._models) if model.labels), ())

    @property
    def max_rows(self) -> int:
        """Implement HeldSteps.max_rows. Steps without a batch dimension do not count the rows of a request."""
        batching = [model for model in self._models if model.signature.is_batchable]
        return min(model.max_rows for model in batching or self._models)

    async def run(
        self, inputs: Tensors, output_names: tuple[str, ...], deadline: Deadline, priority: Priority
    ) -> Tensors:
        """Implement HeldSteps.run."""
        plan = self._pipeline.plan(output_names)
        # The arrays of a request, by tensor. Steps pass them on as they are.
        tensors = dict(inputs)
        if plan.is_chain:
            for position in plan.positions:
                await self._run_step(position, tensors, deadline, priority)
        else:
            await self._run_concurrently(plan, tensors, deadline, priority)
        return {name: tensors[name] for name in output_names}

    def times(self) -> tuple[TaskTimes, ...]:
        """Implement HeldSteps.times."""
        return tuple(each for model in self._models for each in model.times)

    def release(self) -> None:
        """Implement HeldSteps.release."""
        _release(self._models)

    async def _run_step(self, position: int, tensors: dict[str, Array], deadline: Deadline, priority: Priority) -> None:
        """Run one step, and add its outputs to `tensors`.

        All outputs of its signature are requested, because devices have compiled that combination at warm-up.
        """
        step = self._pipeline.steps[position]
        inputs = {key: tensors[tensor] for key, tensor in step.inputs}
        try:
            result = await self._models[position].predict(inputs, deadline, (), priority)
        except ServingError as error:
            raise error.with_message(f"Ensemble {self._name}, {step}: {error.message}") from None
        for key, tensor in step.outputs:
            tensors[tensor] = result.outputs[key]

    async def _run_concurrently(
        self, plan: Plan, tensors: dict[str, Array], deadline: Deadline, priority: Priority
    ) -> None:
        """Run each step as soon as those that it needs have ended. The first error cancels all other steps."""
        tasks: dict[int, asyncio.Task[None]] = {}

        async def run_when_ready(position: int) -> None:
            for other in self._pipeline.needs[position]:
                await tasks[other]
            await self._run_step(position, tensors, deadline, priority)

        try:
            async with asyncio.TaskGroup() as group:
                for position in plan.positions:
                    tasks[position] = group.create_task(run_when_ready(position))
        except ExceptionGroup as failures:
            # Without its traceback: a frame of the TaskGroup refers to the group, and would keep the arrays alive.
            raise _first(failures.with_traceback(None)) from None
        finally:
            # The traceback of a failed task refers to this dictionary.
            tasks.clear()


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the error of the step that failed first. Steps that waited for it may have raised it again."""
    first = failures.exceptions[0]
    return first.copy() if isinstance(first, ServingError) else first


def _is_same(signature: Signature, model: AcquiredModel) -> bool:
    # By identity: a version keeps its signature object, and comparing contents for each request would cost too much.
    return signature is model.signature


def _release(models: Sequence[AcquiredModel]) -> None:
    for model in models:
        model.release()
