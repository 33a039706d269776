"""The fixed shapes of a model's programs: every combination of a batch size and a sequence length."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.terms.signature import Signature, TensorSpec

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
