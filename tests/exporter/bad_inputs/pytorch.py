"""PyTorch files that are damaged, do not match the model, or contain code."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.exporter.bad_inputs.case import Case, Change, Section, cut, fill, remove
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS

_FEATURES = "--input 'features:float32[batch,3]'"
_EXPORT = f"model.pt models/tiny {_FEATURES}"
_TINY = f"{_EXPORT} --model models:tiny"
_X = "model.pt models/tiny --input 'x:float32[batch,3]'"


def make(folder: Path) -> None:
    """Save `tiny` in each of the formats. The sharded format has two files."""
    import json

    import torch
    from safetensors.torch import save_file

    from tests.exporter.pytorch import modules

    torch.manual_seed(1)
    model = modules.tiny().eval()
    torch.save(model.state_dict(), folder / "model.pt")
    save_file(model.state_dict(), folder / "model.safetensors")
    rows = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(model, (torch.zeros(2, 3),), dynamic_shapes=(rows,)), folder / "model.pt2")
    (folder / "shards").mkdir()
    placed = {}
    for index, (name, tensor) in enumerate(model.state_dict().items()):
        placed[name] = f"model-0000{index % 2 + 1}-of-00002.safetensors"
        save_file({name: tensor}, folder / "shards" / placed[name])
    (folder / "shards/model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    shutil.copy(MODELS / "torch_models.py", folder / "models.py")


def _save(name: str, what: Callable[[], object]) -> Change:
    def change(folder: Path) -> None:
        import torch

        torch.save(what(), folder / name)

    return change


def _modules() -> Any:  # noqa: ANN401 - a module
    from tests.exporter.pytorch import modules

    return modules


def _run() -> dict[str, Any]:
    import argparse

    return {"model": _modules().tiny().state_dict(), "args": argparse.Namespace(lr=1)}


def _other() -> dict[str, Any]:
    import torch

    stored: dict[str, Any] = dict(_modules().tiny(units=5).state_dict())
    del stored["norm.bias"]
    return stored | {"aux.weight": torch.zeros(2), "scores.bias": torch.zeros(2, dtype=torch.int32)}


def _diverged() -> dict[str, Any]:
    import torch

    state: dict[str, Any] = dict(_modules().tiny().state_dict())
    state["hidden.weight"][0, 0] = torch.nan
    return state


SECTION = Section(
    "PyTorch files",
    "`model.pt`, `model.safetensors`, `model.pt2` and `shards` contain one module with the layers `hidden`, `norm` and "
    "`scores`.",
    make,
    (
        Case("Truncated .pt file", 6, _TINY, cut("model.pt", 1500)),
        Case(".pt file of another format", 6, _TINY, fill("model.pt")),
        Case("Truncated .safetensors file", 6, _TINY.replace("model.pt", "model.safetensors"),
             cut("model.safetensors", 400)),
        Case(".safetensors file of another format", 6, _TINY.replace("model.pt", "model.safetensors"),
             fill("model.safetensors")),
        Case("Missing shard", 6, _TINY.replace("model.pt", "shards"), remove("shards/*-00002-of*")),
        Case("Truncated .pt2 file", 6, "model.pt2 models/tiny", cut("model.pt2", 3000)),
        Case(".pt2 file of another format", 6, "model.pt2 models/tiny", fill("model.pt2")),
        Case("Missing builder", 2, _EXPORT),
        Case("Missing inputs", 2, "model.pt models/tiny --model models:tiny"),
        Case("Builder for a program", 2, "model.pt2 models/tiny --model models:tiny"),
        Case("Unknown builder module", 7, f"{_EXPORT} --model model:tiny"),
        Case("Unknown builder function", 7, f"{_EXPORT} --model models:tinny"),
        Case("Exception in the builder", 7, f"{_EXPORT} --model models:tiny_of --model-arg features=4"),
        Case("Wrong result of the builder", 7, f"{_EXPORT} --model models:no_model"),
        Case("Inputs that the module rejects", 7,
             "model.pt models/tiny --model models:tiny --input 'features:float32[batch,7]'"),
        Case("Different shapes", 2, f"{_TINY} --model-arg units=5"),
        Case("Several differences", 2, _TINY, _save("model.pt", _other)),
        Case("Code in a pickle", 11, _TINY, _save("model.pt", _run)),
        Case("Pickled module", 11, _TINY, _save("model.pt", lambda: _modules().tiny())),
        Case("NaN weights", 12, _TINY, _save("model.pt", _diverged)),
        Case("Missing averages", 2, f"{_TINY} --weights ema"),
        Case("Unsupported operation", 4, f"{_X} --model models:unsupported",
             _save("model.pt", lambda: _modules().unsupported().state_dict())),
        Case("Random numbers in the module", 4, f"{_X} --model models:noisy",
             _save("model.pt", lambda: _modules().noisy().state_dict())),
        Case("Control flow that depends on values", 4, f"{_X} --model models:branching",
             _save("model.pt", lambda: _modules().branching().state_dict())),
        Case("Wrong kind: `--from keras`", 6, f"{_EXPORT} --from keras"),
    ),
    packages=("torch", "torchax"),
)  # fmt: skip
