"""Restores the stored variables of an object checkpoint into a model, and reports every variable of both."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.options.export_options import ModelOptions, Weights, idle_renames
from tpuserve_exporter.sources.variables.averages import is_averaged_model
from tpuserve_exporter.sources.variables.matching import (
    Matching,
    ModelVariable,
    Way,
    compare,
    match,
    model_variables,
    other_models,
)
from tpuserve_exporter.sources.variables.object_graph import ROOT, ObjectGraph, StoredVariable
from tpuserve_exporter.sources.variables.state_matching import describe_missing
from tpuserve_exporter.sources.variables.stored_states import StoredStates
from tpuserve_exporter.terms.restore_report import Entry, Fate, RestoreReport, allow

# The end of the names that tf.train.ExponentialMovingAverage gives.
_SHADOW = "/ExponentialMovingAverage"


def restore(model: Any, graph: ObjectGraph, options: ModelOptions) -> RestoreReport:  # noqa: ANN401 - Keras or tf.Module
    """Assign the stored values to the model's variables, one by one.

    Raises CheckpointMismatch, with the report, before it assigns any value.
    """
    idle = idle_renames([variable.name for variable in graph.variables.values()], options.renames)
    graph, weights = graph.renamed(options.renames), model_variables(model)
    matching = match(model, weights, graph, options.weights)
    beside = StoredStates(model, graph, graph.models().get(matching.root, ROOT))
    report = _report(weights, graph, matching, options, idle, beside.compare())
    if report.problems:
        raise CheckpointMismatch(
            report.refusal(f"{graph.prefix.name} does not fit the model that {options.builder} builds"), restore=report
        )
    for index, stored in matching.taken.items():
        graph.read_into(stored, weights[index].variable)
    beside.restore_tables()
    return report


def _report(
    weights: Sequence[ModelVariable],
    graph: ObjectGraph,
    matching: Matching,
    options: ModelOptions,
    idle: Sequence[str],
    beside: Sequence[Entry],
) -> RestoreReport:
    entries = allow([*compare(weights, matching), *beside], options.allow_missing, options.allow_unused)
    known = matching.nodes | {variable.node for variable in matching.leftover}
    optimizer = {node: one for node, one in graph.optimizer_variables().items() if node not in known}
    known |= set(optimizer)
    others = other_models(graph, known)
    known |= {variable.node for variables in others.values() for variable in variables}
    return RestoreReport(
        entries,
        optimizer_state=tuple(variable.name for variable in optimizer.values()),
        other_models={root: tuple(one.name for one in variables) for root, variables in others.items()},
        bookkeeping=tuple(variable.name for node, variable in graph.variables.items() if node not in known),
        notes=(
            *describe_missing(beside, graph.prefix.name),
            *(f"--rename {one} changes no name" for one in idle),
            *notes_on(matching, entries, options),
            *(_notes_on_averages(others) if options.weights == "auto" and not matching.averages else ()),
        ),
    )


def _notes_on_averages(others: Mapping[str, Sequence[StoredVariable]]) -> Iterator[str]:
    """Yield notes on averages that are no whole model, such as the list of a tf.train.ExponentialMovingAverage."""
    for root, variables in others.items():
        if is_averaged_model(root) or any(one.name.endswith(_SHADOW) for one in variables):
            yield (
                f"did not use '{root}', because its {len(variables)} variable(s) are not those of a whole model. If "
                "they are averages of the weights, assign them to a copy of the model and save that as 'ema'"
            )


def notes_on(matching: Matching, entries: Sequence[Entry], options: ModelOptions) -> Iterator[str]:
    """Yield notes for users on how the model was matched."""
    if any(entry.fate is not Fate.MISSING for entry in entries):
        if matching.way is Way.POSITION:
            yield "names differ from the checkpoint's, so that variables were matched by position in the model"
        if matching.way is Way.COUNT:
            yield (
                "layer numbers differ from the checkpoint's, so that layers were matched in the order of their numbers"
            )
    if matching.rivals and not is_averaged_model(matching.root):
        others = ", ".join(f"'{root}'" for root in matching.rivals)
        yield f"used '{matching.root}' of the checkpoint, although {others} would also fit"
    if matching.averages:
        where = f" in '{matching.root}'" if is_averaged_model(matching.root) else ""
        yield describe_averages(len(matching.averages), len(matching.pairs), options.weights, where)


def describe_averages(averages: int, variables: int, wanted: Weights, where: str = "") -> str:
    """Return a note that averages were taken, and which option takes the trained weights."""
    how = "--weights ema" if wanted == "ema" else "--weights raw uses them as trained"
    return f"used the moving averages{where} of {averages} of {variables} variables ({how})"
