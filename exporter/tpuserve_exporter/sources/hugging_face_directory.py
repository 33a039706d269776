"""Files of a Hugging Face directory: `config.json` and weights as `save_pretrained` of transformers writes them."""

import json
from pathlib import Path
from typing import Any

from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX

CONFIG = "config.json"
BIN_INDEX_SUFFIX = ".bin.index.json"
# In the order that transformers prefers. Other files of weights, such as `consolidated.safetensors`, are copies.
_WEIGHTS = ("model.safetensors", f"model{INDEX_SUFFIX}", "pytorch_model.bin", f"pytorch_model{BIN_INDEX_SUFFIX}")
# Keys by which transformers finds a model's class. Other programs write a config.json too.
_KEYS = ("model_type", "architectures")


def read_config(directory: Path) -> dict[str, Any] | None:
    """Return the configuration in a directory, or None if there is none of transformers."""
    try:
        config = json.loads((directory / CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and any(key in config for key in _KEYS) else None


def find_weights(directory: Path) -> Path | None:
    """Return the file or index of weights for PyTorch in a directory, or None."""
    return next((directory / name for name in _WEIGHTS if (directory / name).is_file()), None)


def is_hugging_face(directory: Path) -> bool:
    return find_weights(directory) is not None and read_config(directory) is not None
