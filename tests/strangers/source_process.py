"""`python -m tests.strangers.source_process MODULE:FUNCTION FOLDER ARGUMENTS`: save a model, and compute its outputs.

Runs in a separate process, which imports the model's framework and nothing of this project. Writes the outputs to
FOLDER/answers.pickle as NumPy arrays.
"""

import gc
import importlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS = "answers.pickle"


def main(save: str, folder: Path, arguments: dict[str, Any]) -> None:
    # At the default threshold, collections take a quarter of a framework's import.
    gc.set_threshold(100_000)
    module, _, function = save.partition(":")
    answers = getattr(importlib.import_module(module), function)(folder, **arguments)
    plain = {
        signature: [tuple({name: np.asarray(value) for name, value in part.items()} for part in pair) for pair in pairs]
        for signature, pairs in answers.items()
    }
    (folder / ANSWERS).write_bytes(pickle.dumps(plain))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
