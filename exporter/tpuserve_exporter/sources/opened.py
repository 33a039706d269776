"""The result of opening a source of any kind: a model to write as a SavedModel, and a reference to compare it with."""

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.models.keras_serving import Quantized
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.models.weights_check import release_weights
from tpuserve_exporter.options.export_options import SourceKind
from tpuserve_exporter.terms.provenance import Origins
from tpuserve_exporter.terms.restore_report import RestoreReport
from tpuserve_exporter.terms.signature import Releasable, Runnable


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source that was read.

    `model` is the function to serve, or the directory of a SavedModel to copy. `reference` answers as the source model
    does, and lives as long as files of that directory. `compute_dtype` is a Keras policy name, or
    None if only the written graph shows it. `notes` are for the user, in addition to the notes of `restore`. `live`
    means that the model is the user's, in this process. `jax` is the JAX function behind `model`, if any, with shapes
    as parameters. `quantized` describes the part of the model in 8 bits; the reference is not quantized. `values` has
    the origins of values that `restore` does not compare, such as all of a SavedModel.
    """

    kind: SourceKind | Literal["function"]
    name: str
    model: ServedFunction | Path
    reference: Runnable
    compute_dtype: str | None = None
    step: int | None = None
    builder: str | None = None
    restore: RestoreReport | None = None
    notes: tuple[str, ...] = ()
    live: bool = False
    jax: JaxFunction | None = None
    quantized: Quantized | None = None
    values: Origins = field(default_factory=dict)

    @property
    def origins(self) -> Origins:
        """The origin of every value in the source's model, by the value's name in the model."""
        return {**self.values, **({} if self.restore is None else self.restore.origins)}

    def release(self) -> None:
        """Free the memory of the weights, after the SavedModel is written and compared. Keep a live model's weights."""
        if self.live:
            return
        if not isinstance(self.model, Path):
            release_weights(self.model.trackables)
        reference: object = self.reference
        if isinstance(reference, Releasable):
            reference.release()
        gc.collect()
