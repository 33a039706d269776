"""Converts the EnsembleScheduling message of a model's configuration to the core's Ensemble."""

from collections.abc import Iterable

from tpuserve_formats.messages._proto.ensemble_scheduling_pb2 import EnsembleScheduling
from tpuserve_server.core.ensemble import Connections, Ensemble, EnsembleStep
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import ModelSpec

# Triton's number for the latest version.
_LATEST = -1


def ensemble(message: EnsembleScheduling) -> Ensemble:
    """Convert `message`, an EnsembleScheduling of any descriptor pool.

    Raises:
        InvalidArgument: a step has a negative version other than -1.
    """
    steps = tuple(_step(number, step) for number, step in enumerate(message.step, start=1))
    return Ensemble(steps, tuple(message.input), tuple(message.output))


def _step(number: int, step: EnsembleScheduling.Step) -> EnsembleStep:
    version = step.model_version if step.HasField("model_version") else _LATEST
    if version < _LATEST:
        raise InvalidArgument(f"step {number} ({step.model_name}) has model_version {version}. The latest is -1")
    model = ModelSpec(
        step.model_name,
        version if version != _LATEST else None,
        step.version_label or None,
        step.signature_name,
    )
    return EnsembleStep(number, model, _connections(step.input_map), _connections(step.output_map))


def _connections(entries: Iterable[EnsembleScheduling.Connection]) -> Connections:
    return tuple((entry.key, entry.value) for entry in entries)
