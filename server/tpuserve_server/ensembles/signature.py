"""The signature of an ensemble, from the signatures of the versions that serve its steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpuserve_server.core.ensemble import Ensemble, EnsembleStep, name_some
from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, ServableId, Signature, TensorSpec

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
    """Check every connection, and return the ensemble's signature. `ensemble` has passed `core.ensemble_rules`.

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
