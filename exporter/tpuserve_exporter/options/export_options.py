"""The options of one export."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.example import Example
from tpuserve_exporter.options.expectation import LabelledOptions
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.options.store_uri import OutBase
from tpuserve_exporter.options.tpu import DeviceMesh, ShardRule, TpuTopology

SourceKind: TypeAlias = Literal[
    "tf2-ckpt", "tf1-ckpt", "tf1-meta", "keras", "orbax", "flax", "zarr", "npz", "torch", "huggingface", "savedmodel"
]
ComputeDtype: TypeAlias = Literal["keep", "float32", "bfloat16"]
VersionChoice: TypeAlias = int | Literal["next", "timestamp"]
# `auto`, `raw`, `ema`, or the source's name for the part that holds the weights.
Weights: TypeAlias = str
WEIGHTS: Final = ("auto", "raw", "ema")

# The padding value of a sequence: a number of the input's dtype, or text for strings.
PadValue: TypeAlias = bool | int | float | str

_NAMING = re.compile(r"(?P<name>[^:\[\]]+)(:(?P<dtype>\w+)\[(?P<dims>[^\]]*)\])?")


@dataclass(frozen=True, slots=True)
class InputNaming:
    """One --input: a name, and a dtype and dimensions for models that do not declare their inputs.

    `dims` are sizes, or words for free dimensions. `shape` has None for a free dimension.
    """

    name: str
    dtype: str | None = None
    dims: tuple[int | str, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> "InputNaming":
        """Parse `ids` or `ids:int32[batch,64]`, with words for free dimensions and numbers for fixed ones.

        Raises OptionConflict.
        """
        match = _NAMING.fullmatch(text.strip())
        if match is None:
            raise OptionConflict(f"--input {text!r} is neither NAME nor NAME:DTYPE[DIM,...]")
        if match["dtype"] is None:
            return cls(match["name"])
        dims = [dim.strip() for dim in match["dims"].split(",") if dim.strip()]
        return cls(match["name"], match["dtype"], tuple(int(dim) if dim.isdigit() else dim for dim in dims))

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        return None if self.dims is None else tuple(dim if isinstance(dim, int) else None for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Rename:
    """One --rename, which replaces matches of `pattern` in the names of stored variables before the restore."""

    pattern: re.Pattern[str]
    replacement: str

    @classmethod
    def parse(cls, text: str) -> "Rename":
        """Parse `^encoder/=backbone/`. The last `=` separates pattern and replacement. `\\1` is the first group.

        Raises OptionConflict.
        """
        regex, equals, replacement = text.rpartition("=")
        if not regex or not equals:
            raise OptionConflict(f"--rename {text!r} is not of the form REGEX=REPLACEMENT")
        try:
            pattern = re.compile(regex)
            pattern.sub(replacement, "")  # checks the replacement
        except (re.error, IndexError) as error:
            raise OptionConflict(f"--rename {text!r}: {error}") from error
        return cls(pattern, replacement)


def rename(name: str, renames: Sequence[Rename]) -> str:
    """Apply the renames in order to the name of a stored variable."""
    for one in renames:
        name = one.pattern.sub(one.replacement, name)
    return name


def idle_renames(names: Sequence[str], renames: Sequence[Rename]) -> list[str]:
    """Return the renames that change none of the names, as text."""
    idle = []
    for one in renames:
        changed = [rename(name, [one]) for name in names]
        if changed == list(names):
            idle.append(f"{one.pattern.pattern}={one.replacement}")
        names = changed
    return idle


@dataclass(frozen=True, slots=True)
class TensorNaming:
    """One --input-tensor or --output-tensor: a tensor of a graph and its alias, or None to use the tensor's name."""

    tensor: str
    alias: str | None = None

    @classmethod
    def parse(cls, text: str) -> "TensorNaming":
        """Parse `InfeedQueue/dequeue:1=ids`. Without a number, this means the node's first tensor.

        Raises OptionConflict.
        """
        tensor, equals, alias = text.strip().partition("=")
        if not tensor or (equals and not alias):
            raise OptionConflict(f"{text!r} is neither TENSOR nor TENSOR=NAME")
        return cls(tensor.removesuffix(":0"), alias or None)

    @property
    def name(self) -> str:
        return self.alias or re.sub(r"\W", "_", self.tensor)


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """The ascending lengths that servers pad inputs of variable length to, and the padding values by input."""

    buckets: tuple[int, ...] = ()
    pad_values: Mapping[str, PadValue] = field(default_factory=dict)

    @property
    def longest(self) -> int | None:
        """The largest bucket, or None without buckets."""
        return self.buckets[-1] if self.buckets else None


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options to build and restore a model and to make its signature.

    `batch_sizes` are the ascending sizes that servers pad batches to, for models that need a program for each.
    `sequences` bound the length of inputs, for models that cannot take any length.
    `as_function` traces one signature of a SavedModel again instead of copying the SavedModel.
    `allow_nondeterminism` accepts outputs that differ from call to call, and `allow_batch_statistics` averages over the
    rows of a batch. `unsafe` runs code from the source while reading it, with all permissions of the user.
    `allowed_ops` are operations that the graph may have although servers refuse them. `weights_decay` is the decay of
    an average that does not record it. `imports` are modules with classes
    of a Keras file. `tag_set` chooses the graph of a SavedModel by its tags; empty: the one for
    servers.
    """

    builder: str | None = None
    builder_args: Mapping[str, object] = field(default_factory=dict)
    allow_missing: tuple[str, ...] = ()
    allow_unused: tuple[str, ...] = ()
    signature_name: str = "serving_default"
    inputs: tuple[InputNaming, ...] = ()
    outputs: tuple[str, ...] = ()
    input_tensors: tuple[TensorNaming, ...] = ()
    output_tensors: tuple[TensorNaming, ...] = ()
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    sequences: SequenceOptions = field(default_factory=SequenceOptions)
    compute_dtype: ComputeDtype = "keep"
    int8: bool = False
    freeze: bool = False
    as_function: bool = False
    weights: Weights = "auto"
    weights_decay: float | None = None
    renames: tuple[Rename, ...] = ()
    allow_nan: bool = False
    allow_nondeterminism: bool = False
    allow_batch_statistics: bool = False
    unsafe: bool = False
    allowed_ops: tuple[str, ...] = ()
    tag_set: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InGraphBatching:
    """Batching in the graph. A batch runs when it is full, or `timeout_us` microseconds after its first request.

    `threads` is the number of batches that run at once, and `queue` the number of batches that may wait.
    """

    threads: int = 2
    timeout_us: int = 1000
    queue: int = 100


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """TPUs to compile device programs for, and the sharding of a version over their devices.

    With `strict`, a program that does not fit ends the export. With `numerics`, the exporter emulates the precision of
    a TPU's matrix products.
    """

    topologies: tuple[TpuTopology, ...] = ()
    mesh: DeviceMesh = field(default_factory=DeviceMesh)
    rules: tuple[ShardRule, ...] = ()
    strict: bool = False
    numerics: bool = False


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """All options of one export. If `atol` or `rtol` is None, the default for the model's compute dtype applies.

    Without `signatures`, the version has one signature of the model's tensors, named `model.signature_name`. `labels`
    is a file with one class name a line. `batching` adds batching to the graph. `also` lists formats to write next to
    the SavedModel. `device_programs` adds programs for TPUs, and `tpu` configures their check. `sign` is the file of
    the private key that signs the version.
    """

    source: Path
    out_base: OutBase
    kind: SourceKind | None = None
    model: ModelOptions = field(default_factory=ModelOptions)
    signatures: tuple[SignatureRequest, ...] = ()
    labels: Path | None = None
    batching: InGraphBatching | None = None
    also: tuple[Literal["tflite"], ...] = ()
    device_programs: bool = False
    tpu: TpuOptions = field(default_factory=TpuOptions)
    check: Path | None = None
    examples: tuple[Example, ...] = ()
    labelled: LabelledOptions | None = None
    atol: float | None = None
    rtol: float | None = None
    warmup: Path | None = None
    version: VersionChoice = "next"
    again: bool = False
    sign: Path | None = None
    serve_check: bool = False
    dry_run: bool = False

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return self.model.batch_sizes

    @property
    def sequences(self) -> SequenceOptions:
        return self.model.sequences
