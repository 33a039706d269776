"""Base of the examples: each trains in seconds, writes the same files as a TPU run, and computes reference outputs.

Each directory with an `example.py` has one, called `EXAMPLE`. An `example.py` imports no framework at its top, so that
listing the examples needs no framework. `make examples` trains, exports, serves and queries each.
"""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tensors: TypeAlias = Mapping[str, Array]

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Part:
    """A model of an ensemble. Its source is the file or directory `name` in the one that the training returns."""

    name: str
    export_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """An example. `name` is that of its directory and of the served model. `source` describes the trained files.

    `train` fills a directory and returns the source in it, for `tpuserve export SOURCE OUT_BASE *export_options`.
    `answer` loads the source with its own framework and computes the outputs of `signature` for one of `requests`, by
    name. Both run in a separate process, after setting `environment`. `packages` are imported in addition to
    TensorFlow, and come with `tpuserve-exporter[extra]`.

    An example with `parts` is an ensemble of them, whose steps are in the file `scheduling`. It is not exported itself.
    """

    name: str
    source: str
    train: Callable[[Path], Path]
    requests: Callable[[], list[dict[str, Array]]]
    answer: Callable[[Path, Tensors], Tensors]
    export_options: tuple[str, ...] = ()
    signature: str = "serving_default"
    extra: str = ""
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    scheduling: Path | None = None

    @property
    def missing(self) -> str:
        """Reason why the example cannot run here, or an empty string."""
        missing = [package for package in self.packages if importlib.util.find_spec(package) is None]
        if not missing:
            return ""
        return f"{', '.join(missing)} is not installed. Run: pip install 'tpuserve-exporter[{self.extra}]'"


def find_names() -> list[str]:
    """Return the names of the directories that contain an example."""
    return sorted(path.parent.name for path in FOLDER.glob("*/example.py"))


def load_example(name: str) -> Example:
    """Return the example of a directory."""
    example = importlib.import_module(f"examples.{name}.example").EXAMPLE
    if not isinstance(example, Example) or example.name != name:
        raise TypeError(f"EXAMPLE in examples/{name}/example.py is not an Example with the name {name!r}.")
    return example
