"""What an example is: something that trains in seconds, leaves what a TPU run leaves, and answers for itself.

Each folder with an `example.py` has one, called `EXAMPLE`. That module imports no framework at its top: whoever lists
the examples need not have them all. `make examples` trains, exports, serves and asks each.
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
class Example:
    """`name` is the folder's, and the model's when it is served; `source` says for people what training leaves.

    `train` fills a folder and returns the source in it, for `tpuserve export SOURCE OUT_BASE *export_options`.
    `answer` says what the source itself, read anew by its own framework, makes of one of `requests`: the same outputs,
    by name, that `signature` serves. Both run in one process, which imports nothing else; `environment` is set there
    first. `packages` are imported beside TensorFlow and come with `tpuserve-exporter[extra]`.
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

    @property
    def missing(self) -> str:
        """Why it cannot run here; empty where it can."""
        missing = [package for package in self.packages if importlib.util.find_spec(package) is None]
        if not missing:
            return ""
        return f"needs {', '.join(missing)}: pip install 'tpuserve-exporter[{self.extra}]'"


def find_names() -> list[str]:
    """The folders that hold an example, by name."""
    return sorted(path.parent.name for path in FOLDER.glob("*/example.py"))


def load_example(name: str) -> Example:
    """The example of a folder."""
    example = importlib.import_module(f"examples.{name}.example").EXAMPLE
    if not isinstance(example, Example) or example.name != name:
        raise TypeError(f"EXAMPLE in examples/{name}/example.py is no Example called {name!r}")
    return example
