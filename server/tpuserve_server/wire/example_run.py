"""Finds the signatures that a request with tf.Examples runs, and checks the rules of its method and MultiInference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown
from tpuserve_server.core.terms.types import Signature
from tpuserve_server.wire.example_request import InferenceTask
from tpuserve_server.wire.inference_method import InferenceMethod, method_named


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """A signature that fits its method, and the outputs that the method needs."""

    method: InferenceMethod
    signature: Signature
    output_names: tuple[str, ...]


def find_run(
    signatures: Mapping[str, Signature], method: InferenceMethod, signature_name: str, *, check_method_name: bool
) -> ExampleRun:
    """Find the run for a Classify or Regress request. Raises InvalidArgument if the signature is unknown or unsuitable.

    Source: classifier.cc.
    """
    signature = signatures.get(signature_name)
    if signature is None:
        raise InvalidArgument(f"No signature was found with the name: {signature_name}")
    return ExampleRun(method, signature, method.output_names(signature, check_method_name=check_method_name))


def find_task_runs(
    signatures: Mapping[str, Signature], tasks: Sequence[InferenceTask], *, check_method_names: bool
) -> list[ExampleRun]:
    """Find a run for each task of a MultiInference request, in their order (multi_inference.cc).

    Raises:
        InvalidArgument: the tasks name different models or the same signature twice, or a signature is unknown or does
            not fit its method.
        Unimplemented: a task's method is neither Classify nor Regress.
    """
    runs: dict[str, ExampleRun] = {}
    for task in tasks:
        _check_model(task, tasks[0])
        name = task.signature_name
        if name in runs:
            raise InvalidArgument(f"Duplicate evaluation of signature: {name}")
        signature = signatures.get(name)
        if signature is None:
            raise InvalidArgument(f"Requested signature not found in model graph: {name}")
        method = method_named(task.method_name)
        if method is None:
            raise Unimplemented(f"Unsupported signature method_name: {shown(task.method_name)}")
        outputs = method.output_names(signature, check_method_name=check_method_names)
        runs[name] = ExampleRun(method, signature, outputs)
    return list(runs.values())


def _check_model(task: InferenceTask, first: InferenceTask) -> None:
    if not task.spec.name:
        raise InvalidArgument("Found ModelSpec with an empty model name.")
    if task.spec.name != first.spec.name:
        raise InvalidArgument("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
