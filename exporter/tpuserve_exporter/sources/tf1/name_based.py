"""TF1 checkpoints, which store variables by name only: their contents, and the match with a graph's variables."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tpuserve_exporter.errors import CheckpointMismatch, SourceUnreadable
from tpuserve_exporter.graphs.graph_walk import RESOURCE_VARIABLE
from tpuserve_exporter.options.export_options import ModelOptions, Weights, idle_renames, rename
from tpuserve_exporter.sources.checkpoint_path import step_of
from tpuserve_exporter.sources.nearness import check_near, choose_compared, measure
from tpuserve_exporter.sources.part_roles import Role
from tpuserve_exporter.sources.variables.object_graph import (
    OBJECT_GRAPH_KEY,
    open_checkpoint,
    read_tensor,
    restore_tensor,
)
from tpuserve_exporter.terms.provenance import TRAINED, Origin, OriginKind
from tpuserve_exporter.terms.restore_report import ArraySpec, Entry, Fate, RestoreReport, allow
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.variable_pb2 import SaveSliceInfoDef


@dataclass(frozen=True, slots=True)
class Slice:
    """Position of a part in a partitioned variable. A checkpoint holds the whole variable."""

    full_shape: str
    whole_shape: tuple[int, ...]
    spec: str

    @classmethod
    def read(cls, info: "SaveSliceInfoDef") -> "Slice":
        """Return the slice. `spec` has RestoreV2's format: `20 4 0,10:0,4` is the first half of [20, 4]."""
        offsets = ":".join(f"{start},{size}" for start, size in zip(info.var_offset, info.var_shape, strict=True))
        full_shape = " ".join(str(size) for size in info.full_shape)
        return cls(info.full_name, tuple(info.full_shape), f"{full_shape} {offsets}")


@dataclass(frozen=True, slots=True)
class GraphVariable:
    """One variable of a graph. `name` is its node's name, and its name in a checkpoint unless it is a `part`."""

    name: str
    dtype: "tf.DType"
    shape: tuple[int, ...]
    is_resource: bool
    part: Slice | None = None

    @property
    def stored_name(self) -> str:
        return self.part.full_shape if self.part else self.name

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.part.whole_shape if self.part else self.shape


def read_variable(node: "NodeDef") -> GraphVariable:
    """Read a variable's node. Raises SourceUnreadable if the node has no complete shape."""
    import tensorflow as tf

    shape = tf.TensorShape(node.attr["shape"].shape)
    if not shape.is_fully_defined():
        raise SourceUnreadable(f"the shape of the graph's variable {node.name} is unknown")
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
    return GraphVariable(node.name, dtype, tuple(shape.as_list()), node.op == RESOURCE_VARIABLE)


# Suffix that tf.train.ExponentialMovingAverage adds to a variable's name for its average.
_AVERAGE = "/ExponentialMovingAverage"
_BOOKKEEPING = frozenset({"global_step", "save_counter"})
# Scalars that optimizers keep in addition to a slot for every variable.
_OPTIMIZER_SCALARS = re.compile(r"(.*/)?(beta[12]_power|current_loss_scale|good_steps)(_\d+)?")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a checkpoint. `key` is its stored name, before any --rename."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class NameBasedCheckpoint:
    """A checkpoint with its `stored` tensors, by name after --rename."""

    prefix: Path
    reader: "tf.train.CheckpointReader"
    stored: Mapping[str, Stored]

    def read(self, stored: Stored) -> Array:
        """Return the value. Raises SourceUnreadable if a shard is missing or truncated."""
        return read_tensor(self.reader, self.prefix, stored.key)

    def step(self) -> int | None:
        """Return the value of `global_step`, else the number at the end of the checkpoint's name, or None."""
        counted = self.stored.get("global_step")
        if counted is not None and counted.shape == ():
            return int(self.read(counted))
        return step_of(self.prefix)


@dataclass(frozen=True, slots=True)
class RestoredValues:
    """The values of a graph's variables, read on request, each in its variable's dtype.

    `initial` are the values of variables that the checkpoint lacks.
    """

    checkpoint: NameBasedCheckpoint
    pairs: Mapping[str, tuple[GraphVariable, Stored]]
    initial: Mapping[str, Array]

    def read(self, name: str) -> "tf.Tensor":
        """Read the value of the variable `name`. Raises SourceUnreadable."""
        import tensorflow as tf

        if name in self.initial:
            return tf.constant(self.initial[name])
        variable, stored = self.pairs[name]
        part = variable.part.spec if variable.part else ""
        return restore_tensor(self.checkpoint.prefix, stored.key, stored.dtype, variable.dtype, part)


def read_checkpoint(prefix: Path, options: ModelOptions) -> NameBasedCheckpoint:
    """Read the list of tensors in the checkpoint `prefix` (without `.index`), and apply --rename.

    Raises SourceUnreadable, or CheckpointMismatch if two tensors get one name.
    """
    reader = open_checkpoint(prefix)
    if reader.has_tensor(OBJECT_GRAPH_KEY):
        raise SourceUnreadable(f"{prefix.name} is a TensorFlow 2 checkpoint with an object graph. Use --from tf2-ckpt")
    dtypes = reader.get_variable_to_dtype_map()
    stored = dict[str, Stored]()
    for key, shape in sorted(reader.get_variable_to_shape_map().items()):
        name = rename(key, options.renames)
        if name in stored:
            raise CheckpointMismatch(f"--rename gives {stored[name].key} and {key} the same name, {name}")
        stored[name] = Stored(key, dtypes[key].name, tuple(shape))
    return NameBasedCheckpoint(prefix, reader, stored)


class Initializer(Protocol):
    """Source of initial values for a graph's variables."""

    def initialize(self, names: Sequence[str]) -> Mapping[str, Array]: ...


def restore(
    checkpoint: NameBasedCheckpoint, variables: Sequence[GraphVariable], options: ModelOptions, what: str,
    initializer: Initializer, left_out: Iterable[str] = (),
) -> tuple[RestoredValues, RestoreReport]:  # fmt: skip
    """Match `variables` with the stored tensors. Raises CheckpointMismatch, with a report, if they do not fit `what`.

    `left_out` are variables of the graph that are not served. `initializer` gives the values of variables that the
    checkpoint lacks and --allow-missing allows.
    """
    raw, averages = _choose(checkpoint, variables, options.weights)
    chosen = {**raw, **averages}
    pairs = {one.name: (one, chosen[one.name]) for one in variables if one.name in chosen}
    average = Origin(OriginKind.AVERAGE, f"NAME{_AVERAGE}", _check_averages(checkpoint, averages, raw))
    entries = [_compare(one, chosen.get(one.name), average if one.name in averages else TRAINED) for one in variables]
    report = _report(checkpoint, pairs, entries, options, len(averages), frozenset(left_out))
    if report.problems:
        # A graph from a file has no initial values.
        message = report.refusal(f"{checkpoint.prefix.name} does not fit {what}", may_miss=options.builder is not None)
        raise CheckpointMismatch(message, restore=report)
    missing = [one.name for one in variables if one.name not in pairs]
    return RestoredValues(checkpoint, pairs, initializer.initialize(missing) if missing else {}), report


def _choose(
    checkpoint: NameBasedCheckpoint, variables: Sequence[GraphVariable], weights: Weights
) -> tuple[dict[str, Stored], dict[str, Stored]]:
    """Return the trained tensor of each variable that has one, and the averages to take instead."""
    stored = checkpoint.stored
    raw = {one.name: stored[one.stored_name] for one in variables if one.stored_name in stored}
    shadows = {one.name: one.stored_name + _AVERAGE for one in variables}
    averages = {name: stored[shadow] for name, shadow in shadows.items() if shadow in stored}
    if weights == "ema" and not averages:
        raise CheckpointMismatch(
            f"--weights ema: {checkpoint.prefix.name} has no averages (NAME{_AVERAGE}). Use --weights raw"
        )
    return raw, averages if weights != "raw" else {}


def _check_averages(checkpoint: NameBasedCheckpoint, averages: Mapping[str, Stored], raw: Mapping[str, Stored]) -> str:
    """Compare averages with the trained values. Return a description. Raises CheckpointMismatch if they are far."""
    alike = {
        name: math.prod(one.shape)
        for name, one in averages.items()
        if "float" in one.dtype and name in raw and raw[name].shape == one.shape
    }
    values = ((checkpoint.read(averages[name]), checkpoint.read(raw[name])) for name in choose_compared(alike))
    return check_near(measure(values), f"the average (NAME{_AVERAGE})", "the weights as trained")


def _compare(variable: GraphVariable, stored: Stored | None, origin: Origin) -> Entry:
    model = ArraySpec(variable.dtype.name, variable.stored_shape)
    if stored is None:
        return Entry.compare(variable.name, model, None)
    key = None if stored.key == variable.name else stored.key
    return Entry.compare(variable.name, model, stored.spec, replace(origin, stored=key))


def _report(
    checkpoint: NameBasedCheckpoint,
    pairs: Mapping[str, tuple[GraphVariable, Stored]],
    entries: list[Entry],
    options: ModelOptions,
    averages: int,
    left_out: frozenset[str],
) -> RestoreReport:
    taken = {stored.key for _, stored in pairs.values()}
    rest = {name: one for name, one in checkpoint.stored.items() if one.key not in taken}
    served = {variable.stored_name for variable, _ in pairs.values()}
    raw = [name for name in rest if name + _AVERAGE in checkpoint.stored and name in served]
    shadows = [name for name in rest if name.endswith(_AVERAGE)]
    bookkeeping = [name for name in rest if name in _BOOKKEEPING]
    known = {*raw, *shadows, *bookkeeping}
    roles = roles_of_names({name: one.shape for name, one in checkpoint.stored.items()})
    slots = [name for name in rest if roles[name] is Role.OPTIMIZER and name not in known]
    known |= {*slots}
    unserved = [name for name in rest if name in left_out and name not in known]
    known |= {*unserved}
    unused = [Entry(name, Fate.UNUSED, checkpoint=str(one.spec)) for name, one in rest.items() if name not in known]
    others = {"raw weights": raw, "averages": shadows, "training graph": unserved}
    return RestoreReport(
        allow([*entries, *unused], options.allow_missing, options.allow_unused),
        optimizer_state=tuple(slots),
        other_models={kind: tuple(names) for kind, names in others.items() if names},
        bookkeeping=tuple(bookkeeping),
        notes=tuple(_notes(checkpoint, averages, len(pairs), options)),
    )


def roles_of_names(shapes: Mapping[str, Sequence[int]]) -> dict[str, Role]:
    """Return the role of each variable of a checkpoint, by its name and the names of the others.

    Optimizer state are scalars, and names below a variable's name (`dense/kernel/Adam_1`).
    """
    variables = {name for name, shape in shapes.items() if shape or "/" in name}
    return {name: _role_of_name(name, variables) for name in shapes}


def _role_of_name(name: str, variables: Set[str]) -> Role:
    if name.endswith(_AVERAGE):
        return Role.AVERAGE
    parts = name.split("/")
    inner = {"/".join(parts[start:end]) for end in range(1, len(parts)) for start in range(end)}
    below = any(one in variables and not name.endswith(one) for one in inner)
    return Role.OPTIMIZER if below or _OPTIMIZER_SCALARS.fullmatch(name) else Role.MODEL


def _notes(checkpoint: NameBasedCheckpoint, averages: int, variables: int, options: ModelOptions) -> Iterator[str]:
    for idle in idle_renames([one.key for one in checkpoint.stored.values()], options.renames):
        yield f"--rename {idle} changes no name"
    if averages:
        how = "--weights ema" if options.weights == "ema" else "--weights raw uses the others"
        yield f"used the moving averages of {averages} of {variables} variables ({how})"
