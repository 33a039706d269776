"""The device programs of a version: one for each part and bucket, with shared weights."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.models.jax_serving import compute_dtype_of
from tpuserve_exporter.options.export_options import PadValue, SequenceOptions
from tpuserve_exporter.programs.host_part import HostPart, write_host_model
from tpuserve_exporter.programs.lowering import load_program, versions
from tpuserve_exporter.programs.weights_file import WEIGHTS_FILE, Weight, write_weights
from tpuserve_exporter.terms.signature import Signature, TensorSpec
from tpuserve_exporter.terms.texts import megabytes
from tpuserve_formats.manifest import FORMAT_VERSION
from tpuserve_formats.manifest.device import DevicePartEntry, DeviceProgram, DeviceSignature, ManifestDevice
from tpuserve_formats.manifest.tensor import DeviceTensor

_NOT_OF_SAVED_MODELS = "(the shapes of a SavedModel are fixed)"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sizes of one program. `batch_size` is None without rows, and `sequence_length` is None without sequences."""

    batch_size: int | None
    sequence_length: int | None

    @property
    def name(self) -> str:
        """The name of a program's file: `b8`, `b8_s128`, or `fixed` without rows and sequences."""
        rows = "fixed" if self.batch_size is None else f"b{self.batch_size}"
        return rows if self.sequence_length is None else f"{rows}_s{self.sequence_length}"

    def shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Return a tensor's shape with this bucket's sizes in its free dimensions."""
        rows = self.sequence_length if self.batch_size is None else self.batch_size
        dims = [
            (rows if axis == 0 else self.sequence_length) if size is None else size
            for axis, size in enumerate(spec.shape or ())
        ]
        assert None not in dims, f"list_buckets lets {spec} through only where every dimension gets a size"
        return tuple(dim for dim in dims if dim is not None)


def list_buckets(signature: Signature, batch_sizes: Sequence[int], lengths: Sequence[int]) -> list[Bucket]:
    """Return the buckets of a signature. Raises CannotLower if the sizes leave a dimension free."""
    _check_shapes(signature, lengths)
    batched = batch_sizes if signature.is_batchable else (None,)
    sequences = lengths if any(spec.free_axes for spec in signature.inputs.values()) else (None,)
    return [Bucket(size, length) for size in batched for length in sequences]


def _check_shapes(signature: Signature, lengths: Sequence[int]) -> None:
    if ragged := [name for name, spec in (*signature.inputs.items(), *signature.outputs.items()) if spec.row_splits]:
        raise CannotLower(
            f"{signature.name}: {ragged[0]!r} is ragged, but a device program has fixed shapes. Let the model take "
            "and return padded tensors and masks, or omit --device-programs"
        )
    for name, spec in signature.inputs.items():
        if spec.shape is None:
            raise CannotLower(
                f"{signature.name}: input {name!r} is of any rank, but a device program has fixed shapes. Set the "
                f"shape with --input '{name}:{spec.dtype}[batch,...]' {_NOT_OF_SAVED_MODELS}"
            )
        if spec.has_batch_dimension and not signature.is_batchable:
            raise CannotLower(
                f"{signature.name}: input {name!r} is {spec} with any number of rows, but not every input and output "
                f"has rows ({signature}). A device program has one number of rows. Use a free first dimension for "
                "all of them, or for none"
            )
        if spec.free_axes and not lengths:
            dims = ["batch" if axis == 0 and size is None else size or "SIZE" for axis, size in enumerate(spec.shape)]
            raise CannotLower(
                f"{signature.name}: input {name!r} is {spec} (? is free), but a device program has fixed shapes. "
                "List the possible lengths with --sequence-buckets 64,128, or set a size with --input "
                f"'{name}:{spec.dtype}[{','.join(map(str, dims))}]' {_NOT_OF_SAVED_MODELS}"
            )


_WIDE = ("int64", "uint64", "float64", "complex128")
_MOST_NAMED = 3
PROGRAMS_FOLDER = Path("assets.extra/tpuserve/programs")


class Part(Protocol):
    """A device part, which is lowered once for each bucket. `weights` are known after the first call of `lower`."""

    name: str
    signature: Signature
    weights: tuple[str, ...]

    def lower(self, bucket: Bucket) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ModelToLower:
    """The parts of a model, the part of each signature, and the weights. `weights` are complete after all parts lower.

    `hosts` are the host parts by signature. `left_out` has the reason for each signature without programs.
    """

    parts: Sequence[Part]
    signatures: Mapping[str, DeviceSignature]
    weights: Iterable[Weight]
    hosts: Mapping[str, HostPart]
    left_out: tuple[str, ...] = ()


def write_programs(
    version: Path,
    model: ModelToLower,
    batch_sizes: Sequence[int],
    sequences: SequenceOptions,
    compute_dtype: str | None,
    advance: Callable[[int, int], None],
) -> ManifestDevice:
    """Lower every part for every bucket into `version`, and write weights and host parts. Raises CannotLower.

    If `compute_dtype` is None, it comes from the programs. The function calls `advance` with the number of written
    programs and their total.
    """
    buckets = {part.name: list_buckets(part.signature, batch_sizes, sequences.buckets) for part in model.parts}
    total, entries, convention = sum(map(len, buckets.values())), dict[str, DevicePartEntry](), 0
    for part in model.parts:
        programs: list[DeviceProgram] = []
        for bucket in buckets[part.name]:
            advance(sum(len(entry.programs) for entry in entries.values()) + len(programs), total)
            program = part.lower(bucket)
            programs.append(_write_program(version, part, bucket, program))
        loaded = load_program(program)
        convention = loaded.calling_convention_version
        computes_in = compute_dtype or compute_dtype_of(loaded.mlir_module())
        entries[part.name] = _describe(part, programs, computes_in, sequences.pad_values)
    write_weights(version / WEIGHTS_FILE, model.weights)
    write_host_model(version, model.hosts)
    return ManifestDevice(
        format_version=FORMAT_VERSION,
        lowered_with=versions(),
        calling_convention_version=convention,
        weights=WEIGHTS_FILE.as_posix(),
        parts=entries,
        signatures=dict(model.signatures),
    )


def _write_program(version: Path, part: Part, bucket: Bucket, program: bytes) -> DeviceProgram:
    file = PROGRAMS_FOLDER / re.sub(r"\W", "_", part.name) / f"{bucket.name}.jaxexport"
    (version / file).parent.mkdir(parents=True, exist_ok=True)
    (version / file).write_bytes(program)
    return DeviceProgram(batch_size=bucket.batch_size, sequence_length=bucket.sequence_length, file=file.as_posix())


def _describe(
    part: Part, programs: Sequence[DeviceProgram], compute_dtype: str, pad_values: Mapping[str, PadValue]
) -> DevicePartEntry:
    pads = pad_values if part.signature.has_sequences else {}
    return DevicePartEntry(
        inputs=_tensors(part.signature.inputs, pads),
        weights=part.weights,
        outputs=_tensors(part.signature.outputs, {}),
        compute_dtype=compute_dtype,
        programs=tuple(programs),
    )


def _tensors(specs: Mapping[str, TensorSpec], pads: Mapping[str, PadValue]) -> dict[str, DeviceTensor]:
    return {
        name: DeviceTensor(dtype=spec.dtype, shape=spec.shape or (), pad_value=pads.get(name))
        for name, spec in specs.items()
    }


def list_wide(version: Path, device: ManifestDevice) -> Iterator[str]:
    """Yield a note for the user about each part with 64-bit tensors.

    JAX lowers its own functions with 32 bits, even if the signature has 64.
    """
    for name, part in device.parts.items():
        program = load_program((version / part.programs[0].file).read_bytes())
        names, avals = (*part.inputs, *part.weights, *part.outputs), (*program.in_avals, *program.out_avals)
        found = [f"'{one}' ({aval.dtype})" for one, aval in zip(names, avals, strict=True) if aval.dtype in _WIDE]
        # An input and an output may have the same name.
        if wide := list(dict.fromkeys(found)):
            named = " and ".join(wide[:_MOST_NAMED]) + (
                f" and {more} more" if (more := len(wide) - _MOST_NAMED) > 0 else ""
            )
            yield f"{named} of {name} have 64 bits, which a TPU computes slowly in pairs of 32. Prefer 32 bits"


def describe_programs(version: Path, device: ManifestDevice) -> str:
    """Describe the number and size of the programs, and the size of the weights."""
    files = [program.file for part in device.parts.values() for program in part.programs]
    programs = sum((version / file).stat().st_size for file in files)
    weights = (version / device.weights).stat().st_size
    return f"{len(files)} program(s), {megabytes(programs)}; weights {megabytes(weights)}"
