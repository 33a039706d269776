"""Restores a saved Keras model of any format into a model, and reports every value of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.models.layer_states import SavedLayers, list_states
from tpuserve_exporter.models.naming import build_weights
from tpuserve_exporter.options.export_options import ModelOptions, idle_renames
from tpuserve_exporter.sources.variables.matching import Matching, ModelVariable, compare, model_variables
from tpuserve_exporter.sources.variables.object_graph import StoredVariable, renamed
from tpuserve_exporter.sources.variables.object_restore import notes_on
from tpuserve_exporter.sources.variables.state_matching import (
    compare_settings,
    compare_states,
    describe_missing,
    describe_settings,
    fill_states,
    missing_tables,
)
from tpuserve_exporter.terms.restore_report import RestoreReport, allow

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from tpuserve_exporter.terms.signature import Array


class StoredModel(Protocol):
    """The values of a saved Keras model. Only `read` reads weights."""

    name: str
    layers: SavedLayers
    optimizer_state: tuple[str, ...]
    bookkeeping: tuple[str, ...]

    def variables(self, states: set[str]) -> list[StoredVariable]:
        """Return the model's variables. `states` are paths of arrays that layers keep and that are no variables."""
        ...

    def match(
        self, model: "keras.Model", weights: Sequence[ModelVariable], stored: Sequence[StoredVariable]
    ) -> Matching:
        """Match the variables of both sides, without averages."""
        ...

    def choose_averages(
        self, model: "keras.Model", weights: Sequence[ModelVariable], matching: Matching, options: ModelOptions
    ) -> tuple[Mapping[int, StoredVariable], tuple[str, ...]]:
        """Return the averages to take, by the variable's index, and notes.

        Raises CheckpointMismatch if the options require averages that the model does not have.
        """
        ...

    def read(self, stored: StoredVariable) -> "Array | tf.Tensor":
        """Return the value of a variable. The variable may take a tensor's memory. Raises SourceUnreadable."""
        ...


def restore_model(stored_model: StoredModel, model: "keras.Model", options: ModelOptions) -> RestoreReport:
    """Build the weights of `model`, and assign the stored ones, one by one.

    Raises SourceUnreadable, OptionConflict, or CheckpointMismatch with the report before it assigns any value.
    """
    saved = stored_model.layers
    fill_states(model, saved)
    build_weights(model, options)
    fill_states(model, saved, built=True)
    weights = model_variables(model)
    stored = stored_model.variables(_list_state_paths(model, saved))
    idle = idle_renames([one.name for one in stored], options.renames)
    stored = list(renamed(dict(enumerate(stored)), options.renames).values())
    matching = stored_model.match(model, weights, stored)
    averages, unread = stored_model.choose_averages(model, weights, matching, options)
    matching = replace(matching, averages={index: averages[index] for index in averages if index in matching.pairs})
    states = [*compare_states(model, saved), *missing_tables(model)]
    entries = allow([*compare(weights, matching), *states], options.allow_missing, options.allow_unused)
    # Variables of other shapes say enough of settings such as `units`.
    is_comparable = options.builder is not None and not RestoreReport(entries).problems
    settings = compare_settings(model, saved) if is_comparable else []
    notes = (
        *describe_missing(states, stored_model.name),
        *describe_settings(settings, stored_model.name),
        *(f"--rename {one} changes no name" for one in idle),
        *notes_on(matching, entries, options),
        *unread,
    )
    report = RestoreReport(
        (*entries, *settings),
        optimizer_state=stored_model.optimizer_state,
        bookkeeping=stored_model.bookkeeping,
        notes=notes,
    )
    if report.problems:
        of = "it describes" if options.builder is None else f"{options.builder} builds"
        raise CheckpointMismatch(
            report.refusal(f"{stored_model.name} does not fit the model that {of}"), restore=report
        )
    assign_values(stored_model, weights, matching.taken)
    return report


def assign_values(
    stored_model: StoredModel, weights: Sequence[ModelVariable], taken: Mapping[int, StoredVariable]
) -> None:
    """Read one value after another into its variable, in the variable's dtype. Raises SourceUnreadable."""
    import tensorflow as tf

    for index, stored in taken.items():
        variable = weights[index].variable
        variable.assign(tf.cast(stored_model.read(stored), variable.dtype), read_value=False)


def _list_state_paths(model: "keras.Model", saved: SavedLayers) -> set[str]:
    """Return the paths of arrays that hold states of layers instead of variables."""
    paths = {f"{one.path}/vars/{key}" for one in list_states(model) for key in one.keys(saved)}
    # A TextVectorization saves the weights of the lookup in it twice.
    return paths | {path.replace("/vars/", "/_lookup_layer/vars/") for path in paths}
