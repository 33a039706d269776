"""EnsembleLoader and EnsembleSteps: pipelines of models, their order and signatures, and their runs."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Self, TypeAlias

from tpuserve_server.core.models.loader import AspiredVersion, Loaded, LoadedEnsemble, LoadedVersion, Loader
from tpuserve_server.core.serving.acquired import AcquiredModel
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.ensemble import Ensemble, EnsembleStep, find_needs, name_some, order_steps
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    Array,
    ModelSpec,
    ServableId,
    Signature,
    Tensors,
    TensorSpec,
)

_PREDICT = "tensorflow/serving/predict"
# Maximum number of problems that a message lists.
_MOST_LISTED = 4


@dataclass(frozen=True, slots=True)
class BoundStep:
    """A step, with the version that serves it and the signature that it runs."""

    step: EnsembleStep
    servable: ServableId
    signature: Signature

    def __str__(self) -> str:
        return f"step {self.step.number} ({self.servable.name} version {self.servable.version})"


@dataclass(frozen=True, slots=True)
class _End:
    """The first end of a connection: the output that produces a tensor, or the first input that takes it."""

    bound: BoundStep
    verb: Literal["produces", "takes"]
    spec: TensorSpec


def connect(ensemble: Ensemble, steps: Sequence[BoundStep]) -> Signature:
    """Check every connection, and return the ensemble's signature. `ensemble` has passed `check_ensembles`.

    An input that several steps take has the known dimensions of all of them.

    Raises:
        FailedPrecondition: connections do not fit the signatures. The message names steps and tensors.
    """
    _refuse(problem for bound in steps for problem in _name_problems(bound))
    ends = {
        tensor: _End(bound, "produces", bound.signature.outputs[key])
        for bound in steps
        for key, tensor in bound.step.outputs
    }
    _refuse(problem for bound in steps for problem in _connect_inputs(bound, ends))
    return Signature(
        DEFAULT_SIGNATURE_NAME,
        inputs=_specs(ensemble.inputs, ends),
        outputs=_specs(ensemble.outputs, ends),
        method_name=_PREDICT,
    )


def _name_problems(bound: BoundStep) -> Iterator[str]:
    signature, step = bound.signature, bound.step
    for kind, connections, specs in (
        ("input", step.inputs, signature.inputs),
        ("output", step.outputs, signature.outputs),
    ):
        for key, _ in connections:
            if key not in specs:
                yield f"{bound} has no {kind} {key}. Its {kind}s are {name_some(sorted(specs))}"
    connected = {key for key, _ in step.inputs}
    for name in signature.inputs:
        if name not in connected and name not in signature.defaults:
            yield f"input {name} of {bound} is not connected"


def _connect_inputs(bound: BoundStep, ends: dict[str, _End]) -> Iterator[str]:
    """Add the tensors that the step is the first to take to `ends`, and yield what does not fit."""
    for key, tensor in bound.step.inputs:
        spec = bound.signature.inputs[key]
        end = ends.setdefault(tensor, _End(bound, "takes", spec))
        if not _fits(end.spec, spec):
            yield (
                f"{end.bound} {end.verb} tensor {tensor} as {_describe(end.spec)}, but {bound} takes it as "
                f"{_describe(spec)}"
            )
        elif end.verb == "takes":
            ends[tensor] = replace(end, spec=_narrow(end.spec, spec))


def _fits(first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether an array can have both dtypes and both shapes."""
    if first.dtype != second.dtype:
        return False
    if first.shape is None or second.shape is None:
        return True
    pairs = zip(first.shape, second.shape, strict=False)
    return len(first.shape) == len(second.shape) and all(a is None or b is None or a == b for a, b in pairs)


def _narrow(first: TensorSpec, second: TensorSpec) -> TensorSpec:
    """Return `first` with the dimensions that only `second` knows. They fit."""
    if first.shape is None or second.shape is None:
        return first if second.shape is None else replace(first, shape=second.shape)
    shape = tuple(b if a is None else a for a, b in zip(first.shape, second.shape, strict=True))
    return replace(first, shape=shape)


def _specs(tensors: Sequence[str], ends: Mapping[str, _End]) -> dict[str, TensorSpec]:
    return {tensor: TensorSpec(tensor, ends[tensor].spec.dtype, ends[tensor].spec.shape, tensor) for tensor in tensors}


def _describe(spec: TensorSpec) -> str:
    dtype = "string" if spec.dtype.hasobject else str(spec.dtype)
    shape = "any shape" if spec.shape is None else str([-1 if size is None else size for size in spec.shape])
    return f"{dtype} {shape}"


def _refuse(problems: Iterator[str]) -> None:
    """Raise FailedPrecondition if there are problems."""
    listed = list(problems)
    if listed:
        more = [f"{len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
        raise FailedPrecondition("; ".join([*listed[:_MOST_LISTED], *more]))


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
        """Return the pipeline of an ensemble that has passed `check_ensembles`."""
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


class EnsembleLoader:
    """Loader of every kind of version. Thread-safe; keeps no state between loads."""

    def __init__(self, versions: Loader[LoadedVersion], acquire: Acquire) -> None:
        """Load version directories with `versions`, and take the steps of ensembles from `acquire`."""
        self._versions = versions
        self._acquire = acquire

    def load(self, aspired: AspiredVersion) -> Loaded:
        """Implement Loader.load. An ensemble is checked against the versions that serve its steps now.

        Raises:
            FailedPrecondition: a step has no version that serves, or the signatures of the steps do not fit the
                connections. Only other versions of the steps can help, and they change the fingerprint.
            ServingError: as the loader of version directories.
        """
        if aspired.ensemble is None:
            return self._versions.load(aspired)
        steps = EnsembleSteps(aspired.servable.name, aspired.ensemble, self._acquire)
        try:
            steps.hold().release()
        except ServingError as error:
            raise FailedPrecondition(error.message) from None
        return LoadedEnsemble(steps, _notes(aspired.ensemble))

    def unload(self, loaded: Loaded) -> None:
        """Implement Loader.unload. An ensemble holds nothing after its last request."""
        if isinstance(loaded, LoadedVersion):
            self._versions.unload(loaded)


def _notes(ensemble: Ensemble) -> tuple[str, ...]:
    return tuple(f"{step}: {', '.join(step.takes)} -> {', '.join(step.produces)}" for step in ensemble.steps)
