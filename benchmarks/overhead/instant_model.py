"""A version on the real registry and batcher whose device answers at once, so that only the server takes time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.harness import mlp_model
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, ServableId, Signature, Tensors, TensorSpec

ID: Final = ServableId("mlp", 1)
_FLOAT: Final = np.dtype(np.float32)
SIGNATURE: Final = Signature(
    DEFAULT_SIGNATURE_NAME,
    {mlp_model.INPUT: TensorSpec(mlp_model.INPUT, _FLOAT, (None, mlp_model.FEATURES))},
    {mlp_model.OUTPUT: TensorSpec(mlp_model.OUTPUT, _FLOAT, (None, mlp_model.CLASSES))},
    "tensorflow/serving/predict",
)


def answer(x: mlp_model.Floats) -> mlp_model.Floats:
    """Return the output for x of shape (n, FEATURES): its first CLASSES columns, negated."""
    return np.negative(x[:, : mlp_model.CLASSES])


@dataclass
class InstantServable:
    """A servable of `answer`, whose runs have ended when they are dispatched."""

    signatures: Mapping[str, Signature] = field(default_factory=lambda: {SIGNATURE.name: SIGNATURE})
    device: str = "instant"
    max_in_flight: int = 1
    unrepeatable: str = ""
    never_blocks: bool = True

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "_Ended":
        """Compute the output."""
        return _Ended({mlp_model.OUTPUT: answer(inputs[mlp_model.INPUT])})

    def close(self) -> None:
        """Release nothing."""


@dataclass(frozen=True, slots=True)
class _Ended:
    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs


@contextmanager
def instant_registry(metrics: Metrics, batch_sizes: tuple[int, ...] = mlp_model.BATCH_SIZES) -> Iterator[ModelRegistry]:
    """Serve the instant version as `ID` in batches of these sizes, for the duration of the context."""
    aspired = AspiredVersion(ID, VersionLocation("/instant"))
    servable = InstantServable()
    parameters = BatchingParameters(max_batch_size=batch_sizes[-1])
    options = BatchingOptions(batch_sizes[-1], batch_sizes)
    batcher = Batcher(
        BatchedVersion(ID, servable, {SIGNATURE.name: options}), parameters, DeviceServices(SystemClock(), metrics)
    )
    registry = ModelRegistry([ID.name], metrics)
    registry.aspire(ID.name, {ID.version: aspired})
    registry.loading(ID)
    registry.available(ID, LoadedVersion(servable, batcher))
    try:
        yield registry
    finally:
        batcher.stop()
