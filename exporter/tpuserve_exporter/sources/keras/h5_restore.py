"""Restores the weights of a Keras file into a builder's model, and reports every variable of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CheckpointMismatch, SourceUnreadable, reason_of
from tpuserve_exporter.options.export_options import ModelOptions, idle_renames
from tpuserve_exporter.restore_report import Entry, RestoreReport, allow
from tpuserve_exporter.sources.keras.archive import KerasArchive
from tpuserve_exporter.sources.keras.h5_averages import find_h5_averages, may_hold_averages
from tpuserve_exporter.sources.keras.h5_variables import (
    is_named,
    match_h5,
    optimizer_state_names,
    read_value,
    read_variables,
)
from tpuserve_exporter.sources.tf2.object_restore import OPTIMIZER, averages_from, describe_averages, notes_on
from tpuserve_exporter.sources.variables.matching import compare
from tpuserve_exporter.sources.variables.model_variables import ModelVariable, model_variables
from tpuserve_exporter.sources.variables.object_graph import StoredVariable, renamed

if TYPE_CHECKING:
    import h5py
    import keras

_AS_TRAINED = "used the weights as trained: {} does not show whether its optimizer kept averages (--weights raw)"


def restore_h5(archive: KerasArchive, model: "keras.Model", options: ModelOptions) -> RestoreReport:
    """Assign the weights in the file to `model`, one by one.

    Raises SourceUnreadable, or CheckpointMismatch with the report before it assigns any value.
    """
    with archive.open_weights() as file:
        stored, weights = read_variables(file), model_variables(model)
        idle = idle_renames([one.name for one in stored], options.renames)
        stored = list(renamed(dict(enumerate(stored)), options.renames).values())
        matching = match_h5(model, weights, stored, is_named(file))
        averages = choose_averages(archive, file, model, weights, options)
        matching = replace(matching, averages={index: averages[index] for index in averages if index in matching.pairs})
        unread = options.weights == "auto" and may_hold_averages(file, archive)
        entries = allow(compare(weights, matching), options.allow_missing, options.allow_unused)
        notes = (*(f"--rename {one} changes no name" for one in idle), *notes_on(matching, entries, options))
        notes += (_AS_TRAINED.format(archive.path.name),) if unread else ()
        state = tuple(optimizer_state_names(file))
        report = RestoreReport(entries, optimizer_state=state, notes=notes, averages_from=averages_from(matching))
        if report.problems:
            raise CheckpointMismatch(
                report.refusal(f"{archive.path.name} does not fit the model that {options.builder} builds"),
                restore=report,
            )
        assign_values(archive, file, weights, matching.taken)
    return report


def restore_h5_averages(archive: KerasArchive, model: "keras.Model", options: ModelOptions) -> RestoreReport | None:
    """Replace the weights of a model that Keras read by their moving averages, if requested and present.

    Return the report of all weights, or None if it took no average. Raises CheckpointMismatch if --weights requires
    averages that the file does not have.
    """
    with archive.open_weights() as file:
        weights = model_variables(model)
        averages = choose_averages(archive, file, model, weights, options)
        assign_values(archive, file, weights, averages)
    if not averages:
        return None
    entries = [Entry.compare(one.name, one.spec, one.spec, index in averages) for index, one in enumerate(weights)]
    notes = (describe_averages(len(averages), len(weights), options.weights),)
    return RestoreReport(tuple(entries), notes=notes, averages_from=OPTIMIZER)


def choose_averages(
    archive: KerasArchive,
    file: "h5py.File",
    model: "keras.Model",
    weights: Sequence[ModelVariable],
    options: ModelOptions,
) -> dict[int, StoredVariable]:
    """Return the averages to take, by the variable's index. Raises CheckpointMismatch if required ones are missing."""
    if options.weights == "raw":
        return {}
    averages = find_h5_averages(file, archive, model, weights)
    if options.weights == "ema" and not averages and may_hold_averages(file, archive):
        raise CheckpointMismatch(
            f"--weights ema: {archive.path.name} does not show what its optimizer kept, so that its averages cannot "
            "be read. Export the .keras file or a checkpoint of the run, or use --weights raw"
        )
    if options.weights == "ema" and not averages:
        raise CheckpointMismatch(
            f"--weights ema: {archive.path.name} has no moving averages (of an optimizer with use_ema). Use "
            "--weights raw"
        )
    return averages


def assign_values(
    archive: KerasArchive,
    file: "h5py.File",
    weights: Sequence[ModelVariable],
    taken: Mapping[int, StoredVariable],
) -> None:
    """Read one value after another into its variable, in the variable's dtype. Raises SourceUnreadable."""
    for index, stored in taken.items():
        variable = weights[index].variable
        try:
            value = read_value(file, stored)
        except OSError as error:
            raise SourceUnreadable(f"cannot read {archive.path.name}: {reason_of(error)}") from error
        variable.assign(value.astype(variable.dtype.as_numpy_dtype, copy=False), read_value=False)
