"""Restores a stored tree of any format into the parameters of the builder's JAX function."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict
from tpuserve_exporter.models.frameworks import compute_on_cpu
from tpuserve_exporter.models.jax_function import JaxFunction, JaxReference
from tpuserve_exporter.models.jax_model import JaxModel, build_jax_model, read_inputs
from tpuserve_exporter.models.jax_serving import Variables, serve_jax
from tpuserve_exporter.models.param_tree import ParamTree
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames
from tpuserve_exporter.options.export_options import ModelOptions, SourceKind
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.part_roles import Role
from tpuserve_exporter.sources.trees.served_weights import ServedWeights
from tpuserve_exporter.sources.trees.stored_tree import StoredTree, is_step
from tpuserve_exporter.sources.trees.tree_matching import TreeMatching, match_trees
from tpuserve_exporter.terms.adapters import is_adapter
from tpuserve_exporter.terms.provenance import TRAINED, OriginKind
from tpuserve_exporter.terms.restore_report import ArraySpec, Entry, Fate, RestoreReport, allow
from tpuserve_exporter.terms.signature import Array

_RANDOM = re.compile(r"(.*_)?(rngs?|prng|prng_key|random_key)(_.*)?")
# Flax collections that belong to a model. A remaining one shows that the stored model was another one.
_COLLECTIONS = frozenset({"params", "batch_stats"})


@dataclass(slots=True)
class Leftover:
    """Stored paths that the model does not use. `unused` ones belonged to the saved model, but not to the builder's."""

    unused: list[KeyPath] = field(default_factory=list)
    optimizer_state: list[KeyPath] = field(default_factory=list)
    others: dict[str, list[KeyPath]] = field(default_factory=dict)
    bookkeeping: list[KeyPath] = field(default_factory=list)


def sort_leftover(stored: Mapping[KeyPath, ArraySpec], matching: TreeMatching) -> Leftover:
    """Sort every stored array that the matching did not take."""
    taken, leftover = set(matching.pairs.values()), Leftover()
    for path, spec in stored.items():
        if path not in taken:
            _sort(path, matching.names[path], spec, matching, leftover)
    return leftover


def _sort(path: KeyPath, name: KeyPath, spec: ArraySpec, matching: TreeMatching, leftover: Leftover) -> None:
    roots = [subtree.root for subtree in matching.found]
    rival = next((root for root in matching.rivals if _is_within(name, root)), None)
    if rival is not None and not any(len(root) > len(rival) and _is_within(name, root) for root in roots):
        leftover.others.setdefault("/".join(rival), []).append(path)
    elif any(map(_RANDOM.fullmatch, name)):
        leftover.bookkeeping.append(path)
    elif any(root and _is_within(name, root) for root in roots) or _is_collection(name, roots):
        leftover.unused.append(path)
    elif matching.states.role_of_array(name) is Role.OPTIMIZER:
        leftover.optimizer_state.append(path)
    elif spec.shape and is_adapter("/".join(name)):
        leftover.unused.append(path)
    elif not spec.shape:
        leftover.bookkeeping.append(path)
    elif () in roots or not roots:
        leftover.unused.append(path)
    else:
        leftover.others.setdefault(_part(name, roots), []).append(path)


def _is_within(name: KeyPath, root: KeyPath) -> bool:
    return name[: len(root)] == root


def _is_collection(name: KeyPath, roots: list[KeyPath]) -> bool:
    """Return whether `name` is next to a found subtree, as a collection of the same model is."""
    parents = {root[:-1] for root in roots} | {()}
    return any(_is_within(name, parent) and _COLLECTIONS.intersection(name[len(parent) :][:1]) for parent in parents)


def _part(name: KeyPath, roots: list[KeyPath]) -> str:
    """Return the part that `name` is in: `teacher`, or `state/teacher` if the model is in `state`, too."""
    shared = max(_count_shared(name, root) for root in roots)
    return "/".join(name[: shared + 1])


def _count_shared(name: KeyPath, root: KeyPath) -> int:
    return next((count for count, (a, b) in enumerate(zip(name, root, strict=False)) if a != b), 0)


def open_tree(kind: SourceKind, tree: StoredTree, options: ModelOptions) -> OpenedSource:
    """Build, restore and lower the model.

    Raises OptionConflict, SourceUnreadable, BuilderFailed, CannotLower, or CheckpointMismatch with a report of the
    mismatches.
    """
    builder = _check_options(options)
    compute_on_cpu()
    inputs = read_inputs(options)
    model = build_jax_model(builder, options, inputs)
    params, variables, report = restore(model, tree, options)
    # The function shares the variables' memory.
    call = replace(model, tree=params).by_name()
    function = JaxFunction(call, variables.arrays(), inputs, scalars=params.scalars)
    served = serve_jax(function, variables, options.batch_sizes, options.sequences.longest)
    return OpenedSource(
        kind=kind,
        name=tree.name,
        model=served.function,
        reference=JaxReference(function),
        compute_dtype=served.compute_dtype,
        step=read_step(tree),
        builder=builder,
        restore=report,
        notes=served.notes,
        jax=served.source,
    )


def _check_options(options: ModelOptions) -> str:
    if options.builder is None:
        raise OptionConflict(
            "a checkpoint contains no model. Name the function that builds it with --model pkg.module:function"
        )
    if options.compute_dtype != "keep":
        raise OptionConflict("--compute-dtype does not apply to JAX models. Their builder sets the dtype (--model-arg)")
    if options.allow_missing:
        raise OptionConflict(
            "--allow-missing does not apply to JAX models, because their parameters have no initial values"
        )
    return options.builder


def restore(model: JaxModel, tree: StoredTree, options: ModelOptions) -> tuple[ParamTree, Variables, RestoreReport]:
    """Restore the parameters from the stored values. Raises CheckpointMismatch before it reads any value."""
    wanted = _list_wanted(model.tree)
    matching = match_trees(wanted, tree.arrays, options.weights, options.renames)
    report = _report(wanted | _stored_scalars(model.tree, tree, matching), tree, matching, options)
    if report.problems:
        raise CheckpointMismatch(
            report.refusal(f"{tree.name} does not fit the model that {options.builder} builds", may_miss=False),
            restore=report,
        )
    weights = ServedWeights(tree, matching, options)
    return *_fill(model.tree, weights.read()), _describe_averages(report, weights)


def _list_wanted(params: ParamTree) -> dict[KeyPath, ArraySpec]:
    arrays = {name: ArraySpec(np.dtype(leaf.dtype).name, tuple(leaf.shape)) for name, leaf in params.shapes.items()}
    scalars = {name: ArraySpec(np.result_type(value).name, ()) for name, value in params.scalars.items()}
    return {keys: (arrays | scalars)[name] for name, keys in params.paths.items()}


def _stored_scalars(params: ParamTree, tree: StoredTree, matching: TreeMatching) -> dict[KeyPath, ArraySpec]:
    """Return the stored scalars for Python numbers of the model. These have no width, so any dtype fits."""
    found = {keys: matching.pairs.get(keys) for name, keys in params.paths.items() if name in params.scalars}
    return {keys: tree.arrays[path] for keys, path in found.items() if path and not tree.arrays[path].shape}


def _report(
    wanted: Mapping[KeyPath, ArraySpec], tree: StoredTree, matching: TreeMatching, options: ModelOptions
) -> RestoreReport:
    pairs, left = matching.pairs, sort_leftover(tree.arrays, matching)
    model, stored = TreeNames(wanted), TreeNames(tree.arrays)
    origins = {
        path: subtree.origin(None if stored.name(place) == model.name(path) else stored.name(place))
        for subtree in matching.found
        for path, place in subtree.pairs.items()
    }
    entries = [
        Entry.compare(model.name(path), spec, _stored(tree, pairs.get(path)), origins.get(path, TRAINED))
        for path, spec in wanted.items()
    ]
    entries += [Entry(stored.name(path), Fate.UNUSED, checkpoint=str(tree.arrays[path])) for path in left.unused]
    return RestoreReport(
        # A JAX model has no initial values for missing parameters.
        allow(entries, (), options.allow_unused),
        optimizer_state=tuple(map(stored.name, left.optimizer_state)),
        other_models={part: tuple(map(stored.name, paths)) for part, paths in left.others.items()},
        bookkeeping=tuple(map(stored.name, left.bookkeeping)),
        notes=matching.notes,
    )


def _stored(tree: StoredTree, path: KeyPath | None) -> ArraySpec | None:
    return None if path is None else tree.arrays[path]


def _describe_averages(report: RestoreReport, weights: ServedWeights) -> RestoreReport:
    entries = [
        replace(entry, origin=replace(entry.origin, detail=weights.detail))
        if entry.origin.kind is OriginKind.AVERAGE
        else entry
        for entry in report.entries
    ]
    return replace(report, entries=tuple(entries))


def _fill(params: ParamTree, values: dict[KeyPath, Array]) -> tuple[ParamTree, Variables]:
    """Return the tree with the stored scalars, and variables with the stored arrays in the model's dtypes."""
    scalars = {name: np.asarray(values.pop(params.paths[name])).item() for name in params.scalars}
    # Each value leaves the dictionary for its variable, or memory would hold all values twice.
    arrays = ((name, _cast(values.pop(params.paths[name]), leaf)) for name, leaf in params.shapes.items())
    return params.with_scalars(scalars), Variables(arrays)


def _cast(value: Array, leaf: Any) -> Array:  # noqa: ANN401 - jax has no types here
    return np.asarray(value).astype(leaf.dtype, copy=False)


def read_step(tree: StoredTree) -> int | None:
    """Return the training step from the directory's name or from a counter in the tree, or None."""
    if tree.step is not None:
        return tree.step
    paths = list(_step_paths(tree))
    return int(tree.read({paths[0]})[paths[0]]) if paths else None


def _step_paths(tree: StoredTree) -> Iterator[KeyPath]:
    """Yield the paths of step counters, nearest to the root first."""
    for path in sorted(tree.arrays, key=len):
        spec = tree.arrays[path]
        if is_step(path) and not spec.shape and spec.dtype in ("int32", "int64", "uint32"):
            yield path
