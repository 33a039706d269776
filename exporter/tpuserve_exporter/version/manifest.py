"""The manifest of a version, and a published version as its destination describes it."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuserve_exporter.options.export_options import SequenceOptions
from tpuserve_exporter.terms.provenance import Origins
from tpuserve_exporter.terms.signature import Signature, Tensors, TensorSpec
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.manifest.part import PadValue
from tpuserve_formats.manifest.tensor import ManifestTensor
from tpuserve_formats.manifest.version import Manifest, ManifestFile, ManifestOrigin, ManifestSignature


def describe_signature(
    signature: Signature,
    samples: Tensors,
    batch_sizes: tuple[int, ...],
    independent: bool,
    sequences: SequenceOptions,
    deterministic: bool = True,
) -> ManifestSignature:
    pads = sequences.pad_values if signature.has_sequences else {}
    batch_sizes = batch_sizes if signature.is_batchable else ()
    buckets = sequences.buckets if signature.has_sequences else ()
    # The items of a ragged tensor, and its rows, may be any number.
    ragged = {one for name, spec in signature.inputs.items() if spec.row_splits for one in (name, *spec.row_splits)}
    inputs = {}
    for name, spec in signature.inputs.items():
        tried = () if name in ragged else _tried_sizes(spec, samples[name].shape, batch_sizes, buckets)
        inputs[name] = _describe_tensor(spec, pads.get(name), tried)
    return ManifestSignature(
        inputs=inputs,
        outputs={name: _describe_tensor(spec) for name, spec in signature.outputs.items()},
        batch_sizes=batch_sizes,
        rows_independent=independent,
        deterministic=deterministic,
        sequence_buckets=buckets,
    )


def _describe_tensor(
    spec: TensorSpec, pad_value: PadValue | None = None, tried_sizes: tuple[tuple[int, int] | None, ...] = ()
) -> ManifestTensor:
    return ManifestTensor(
        dtype=spec.dtype, shape=spec.shape, pad_value=pad_value, tried_sizes=tried_sizes, row_splits=spec.row_splits
    )


def _tried_sizes(
    spec: TensorSpec, sample: tuple[int, ...], batch_sizes: tuple[int, ...], buckets: tuple[int, ...]
) -> tuple[tuple[int, int] | None, ...]:
    """Return the range of sizes in which the checks ran each free dimension, or () if the shape has none."""
    if spec.shape is None or all(size is not None for size in spec.shape):
        return ()
    ranges: list[tuple[int, int] | None] = []
    for axis, (size, sampled) in enumerate(zip(spec.shape, sample, strict=True)):
        # The checks run the sample's rows, all batch sizes, the sample's lengths, and these padded to buckets.
        tried = (sampled, *(buckets if axis else batch_sizes))
        ranges.append((min(tried), max(tried)) if size is None else None)
    return tuple(ranges)


def describe_origins(origins: Origins) -> tuple[ManifestOrigin, ...]:
    """Count the values of each origin, in the order of their first values."""
    counts = Counter((one.kind.value, one.part, one.detail) for one in origins.values())
    return tuple(
        ManifestOrigin(kind=kind, part=part, detail=detail, count=count)
        for (kind, part, detail), count in counts.items()
    )


def write_manifest(manifest: Manifest, version: Path) -> None:
    """Write the manifest into a version directory. All other files must exist."""
    path = version / MANIFEST_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def describe_files(version: Path, advance: Callable[[int, int], None]) -> Mapping[str, ManifestFile]:
    """Return size and SHA-256 of every file of a version except the manifest, by relative path. Reads all files.

    The function calls `advance` with the number of files read so far and their total.
    """
    paths = sorted(path for path in version.rglob("*") if path.is_file() and path != version / MANIFEST_FILE)
    described: dict[str, ManifestFile] = {}
    for done, path in enumerate(paths):
        advance(done, len(paths))
        name = path.relative_to(version).as_posix()
        described[name] = ManifestFile(sha256=hash_file(path), size_bytes=path.stat().st_size)
    return described


def hash_file(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal digits. Reads the whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """An existing version: the bytes of its manifest and of its signatures, or None, and the sizes of its files."""

    number: int
    manifest: bytes | None
    sizes: Mapping[str, int]
    signatures: bytes | None = None
