"""The index of sharded safetensors, which maps each tensor to its file. Needs neither torch nor safetensors."""

import json
from pathlib import Path

from tpuserve_exporter.errors import SourceUnreadable, reason_of

INDEX_SUFFIX = ".safetensors.index.json"


def read_index(index: Path) -> dict[str, Path]:
    """Return each tensor's file, always in the index's directory. The file may be missing. Raises SourceUnreadable."""
    try:
        file_of: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return {tensor: index.with_name(Path(file).name) for tensor, file in file_of.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceUnreadable(f"cannot read {index.name}, an index of safetensors: {reason_of(error)}") from error
