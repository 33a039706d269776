"""Files of a Hugging Face directory: `config.json` and weights as `save_pretrained` of transformers writes them."""

import json
import re
from pathlib import Path
from typing import Any

from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX

CONFIG = "config.json"
BIN_INDEX_SUFFIX = ".bin.index.json"
# In the order that transformers prefers. Other files of weights, such as `consolidated.safetensors`, are copies.
_WEIGHTS = ("model.safetensors", f"model{INDEX_SUFFIX}", "pytorch_model.bin", f"pytorch_model{BIN_INDEX_SUFFIX}")
# Keys by which transformers finds a model's class. Other programs write a config.json too.
_KEYS = ("model_type", "architectures")
# The end of the names of classes whose last dimension of scores has the classes of `id2label`. Detectors have one more.
_CLASSIFIER = "Classification"
# The name that transformers gives to a class without one.
_UNNAMED = re.compile(r"LABEL_\d+")


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


def read_class_names(directory: Path) -> tuple[str, ...]:
    """Return the names in `id2label` in the order of the scores, or () if the model is no classifier or has no names.

    Names that a text file with one name a line cannot hold are no names.
    """
    config = read_config(directory) or {}
    architectures, by_number = config.get("architectures"), config.get("id2label")
    if not isinstance(architectures, list) or not isinstance(by_number, dict):
        return ()
    if not str(next(iter(architectures), "")).endswith(_CLASSIFIER):
        return ()
    names = tuple(by_number.get(str(number)) for number in range(len(by_number)))
    texts = tuple(name for name in names if isinstance(name, str) and name.splitlines() == [name.strip()])
    whole = len(texts) == len(names) == len(set(texts)) > 1
    return texts if whole and not all(map(_UNNAMED.fullmatch, texts)) else ()
