"""What every kind of source comes to: something to write as a SavedModel, and something to compare it with."""

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.models.quantization import Quantized
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.models.weights_release import release_weights
from tpuserve_exporter.options.export_options import SourceKind
from tpuserve_exporter.restore_report import RestoreReport
from tpuserve_exporter.runnable import Releasable, Runnable


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source that was read and understood.

    `model` is the function to serve, or the directory of a SavedModel that is taken over as it is. `reference` answers
    as the source model does; None where the SavedModel is itself the source. `compute_dtype` is a Keras policy name,
    None where only the written graph can tell. `notes` are what a user should know, besides those of `restore`.
    `live`: the model is the user's own, in this process. `jax` is what the model is made of where it is a JAX function,
    with shapes for parameters. `quantized`: how far it is in 8 bits; the reference is not.
    """

    kind: SourceKind | Literal["function"]
    name: str
    model: ServedFunction | Path
    reference: Runnable | None = None
    compute_dtype: str | None = None
    step: int | None = None
    builder: str | None = None
    restore: RestoreReport | None = None
    notes: tuple[str, ...] = ()
    live: bool = False
    jax: JaxFunction | None = None
    quantized: Quantized | None = None

    @property
    def has_choice(self) -> bool:
        """Whether it could keep averages beside its weights: what is no checkpoint has one set of them."""
        return not self.live and not isinstance(self.model, Path)

    def release(self) -> None:
        """Give the weights' memory back, when it is written and was asked; unless others go on using the model."""
        if self.live:
            return
        if not isinstance(self.model, Path):
            release_weights(self.model.trackables)
        reference: object = self.reference
        if isinstance(reference, Releasable):
            reference.release()
        gc.collect()
