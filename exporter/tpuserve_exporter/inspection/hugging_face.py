"""Reads a Hugging Face directory without transformers and without running code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.contents import Contents
from tpuserve_exporter.inspection.torch_file import inspect_safetensors, inspect_torch
from tpuserve_exporter.sources.checkpoint_path import read_index
from tpuserve_exporter.sources.hugging_face_directory import BIN_INDEX_SUFFIX, find_weights, read_config

# Settings in config.json that identify the model, and the release that saved it.
_FACTS = ("architectures", "model_type", "dtype", "torch_dtype", "max_position_embeddings", "transformers_version")


def inspect_hugging_face(directory: Path) -> Contents:
    """Return the contents of a directory with `config.json` and weights. Raises SourceUnreadable."""
    config, weights = read_config(directory), find_weights(directory)
    if config is None or weights is None:
        raise SourceUnreadable(f"{directory} is not a directory of transformers")
    return replace(
        _inspect_weights(weights),
        kind="Hugging Face model",
        name=directory.resolve().name,
        facts={name: _shown(config[name]) for name in _FACTS if config.get(name)} | {"weights": weights.name},
    )


def _inspect_weights(weights: Path) -> Contents:
    if weights.suffix == ".bin":
        return inspect_torch(weights)
    if not weights.name.endswith(BIN_INDEX_SUFFIX):
        return inspect_safetensors(weights)
    shards = sorted(set(read_index(weights).values()))
    found = [inspect_torch(one) for one in shards if one.is_file()]
    return Contents(
        kind="PyTorch files",
        name=weights.name,
        arrays=tuple(array for one in found for array in one.arrays),
        files={shard.name: shard.stat().st_size for shard in shards if shard.is_file()},
        notes=tuple(note for one in found for note in one.notes),
        problems=tuple(f"{one.name} is missing; {weights.name} lists it" for one in shards if not one.is_file()),
    )


def _shown(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
