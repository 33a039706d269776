"""Tests that PyTorch files that mismatch, are damaged, or could run code fail with a message and publish nothing."""

import argparse
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.exporter.conftest import Finished
from tests.exporter.pytorch import modules

Export = Callable[..., Finished]
FEATURES = ("--input", "features:float32[batch,3]")
TINY = ("--model", "tests.exporter.pytorch.modules:tiny", *FEATURES)


def refused(export: Export, source: Path, code: int, *options: str) -> str:
    """Run a failing export and return its message on one line.

    It checks that the export publishes nothing and that the message contains no path of this machine.
    """
    base = source.parent / "base"
    finished = export(source, base, *options, "--batch-sizes", "1,4")
    text = " ".join(finished.err.split())
    assert finished.code == code, text
    assert not base.exists()
    assert "Traceback" not in text
    assert "site-packages" not in text
    return text


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(modules.tiny().state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    features = {0: torch.export.Dim("batch")}
    exported = torch.export.export(modules.tiny().eval(), (torch.zeros(2, 3),), dynamic_shapes=(features,))
    torch.export.save(exported, path)
    return path


class Trap:
    """An object that makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_every_mismatch_is_listed(export: Export, tmp_path: Path) -> None:
    stored: dict[str, torch.Tensor] = dict(modules.tiny(units=5).state_dict())
    del stored["norm.bias"], stored["norm.num_batches_tracked"]
    stored |= {"aux.weight": torch.zeros(2), "scores.bias": torch.zeros(2, dtype=torch.int32)}
    torch.save(stored, tmp_path / "other.pt")
    finished = export(tmp_path / "other.pt", tmp_path / "base", *TINY, "--json")
    assert finished.code == 2
    variables = {one["name"]: one for one in finished.document["restore"]["variables"]}
    assert {name: one["fate"] for name, one in variables.items()} == {
        "hidden.weight": "shape differs",
        "hidden.bias": "shape differs",
        "norm.weight": "shape differs",
        "norm.running_mean": "shape differs",
        "norm.running_var": "shape differs",
        "norm.bias": "missing",
        "scores.weight": "shape differs",
        "scores.bias": "dtype differs",
        "aux.weight": "unused",
    }
    assert (variables["hidden.weight"]["model"], variables["hidden.weight"]["checkpoint"]) == (
        "float32[4, 3]",
        "float32[5, 3]",
    )


def test_a_file_that_could_run_code_is_not_read(export: Export, tmp_path: Path) -> None:
    torch.save({"model": modules.tiny().state_dict(), "x": Trap(tmp_path / "ran")}, tmp_path / "trap.pt")
    text = refused(export, tmp_path / "trap.pt", 11, *TINY)
    assert "trap.pt contains more than tensors (posix.mkdir). Reading it could run code from the file" in text
    assert "use --unsafe if you trust the file's author" in text
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_what_else_a_pickle_holds_is_named(export: Export, tmp_path: Path, zipped: bool) -> None:
    saved = {"model": modules.tiny().state_dict(), "args": argparse.Namespace(lr=1)}
    torch.save(saved, tmp_path / "run.pt", _use_new_zipfile_serialization=zipped)
    assert "argparse.Namespace" in refused(export, tmp_path / "run.pt", 11, *TINY)
    torch.save(modules.tiny(), tmp_path / "whole.pt", _use_new_zipfile_serialization=zipped)
    assert "tests.exporter.pytorch.modules.Tiny" in refused(export, tmp_path / "whole.pt", 11, *TINY)


def test_a_whole_module_is_served_on_request(export: Export, tmp_path: Path) -> None:
    torch.save(modules.tiny(), tmp_path / "whole.pt")
    finished = export(tmp_path / "whole.pt", tmp_path / "base", *FEATURES, "--unsafe", "--batch-sizes", "1")
    assert finished.code == 0, finished.err


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.pt2", "old.pt"])
def test_truncated_files_are_unreadable(export: Export, program: Path, tmp_path: Path, name: str) -> None:
    model = modules.tiny()
    full = tmp_path / "full"
    if name == "model.pt2":
        shutil.copy(program, full)
    elif name == "model.safetensors":
        save_file(model.state_dict(), full)
    else:
        torch.save(model.state_dict(), full, _use_new_zipfile_serialization=name == "model.pt")
    content = full.read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    text = refused(export, tmp_path / name, 6, *(() if name == "model.pt2" else TINY))
    assert f"cannot read {name}" in text


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps({"a": 1})])
def test_files_that_are_none_of_torchs_are_unreadable(export: Export, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert "cannot read model.pt as a file of torch.save" in refused(export, tmp_path / "model.pt", 6, *TINY)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_is_told_from_weights(export: Export, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(modules.tiny().eval(), torch.zeros(2, 3)), tmp_path / "script.pt")
    assert "script.pt is TorchScript" in refused(export, tmp_path / "script.pt", 6, *TINY)


def test_a_file_without_weights_is_unreadable(export: Export, tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    assert "empty.pt contains no weights" in refused(export, tmp_path / "empty.pt", 6, *TINY)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--model", "tests.exporter.pytorch.modules:tiny", "--input", "features"), 2, "forward takes (features)"),
        ((*TINY[:2], "--input", "features:string[batch,3]"), 2, "torch has no dtype 'string'"),
        ((*TINY[:2], "--input", "my-x:float32[batch,3]"), 2, "'my-x' cannot be the name of an input in a signature"),
        ((*TINY, "--output", "a", "--output", "b"), 2, "there are 2 --output options, but the model has 1 output(s)"),
        (("--model", "tests.exporter.builders:tiny"), 7, "instead of a torch.nn.Module"),
    ],
)
def test_wrong_options_are_refused(
    export: Export, weights: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    assert message in refused(export, weights, code, *options)


def test_a_program_has_shapes_of_its_own(export: Export, program: Path, tmp_path: Path) -> None:
    shutil.copy(program, tmp_path / "model.pt2")
    text = refused(export, tmp_path / "model.pt2", 2, "--input", "x:float32[batch,4]")
    assert "--input describes x: float32[batch, 4], but the program takes float32[rows, 3]" in text


def test_fused_attention_in_a_program_can_be_turned_off(export: Export, tmp_path: Path) -> None:
    layers = modules.encoder().layers.eval()
    with torch.no_grad():
        exported = torch.export.export(layers, (torch.ones(2, 5, 16),), strict=True)
    torch.export.save(exported, tmp_path / "model.pt2")
    text = refused(export, tmp_path / "model.pt2", 4)
    assert "aten._transformer_encoder_layer_fwd.default, so that there is no program for a TPU. Call" in text
    assert "torch.backends.mha.set_fastpath_enabled(False) before torch.export" in text


def _change(program: Path, path: Path, changes: dict[str, Callable[[bytes], bytes]], more: dict[str, bytes]) -> Path:
    """Write a copy of the program to `path` with members changed (by the end of their names) and added."""
    with zipfile.ZipFile(program) as source, zipfile.ZipFile(path, "w") as changed:
        for name in source.namelist():
            change = next((one for end, one in changes.items() if name.endswith(end)), None)
            content = source.read(name)
            changed.writestr(name, change(content) if change else content)
        for name, content in more.items():
            changed.writestr(f"model/{name}", content)
    return path


def test_a_program_that_was_not_saved_to_its_end_is_unreadable(export: Export, program: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(program) as full, zipfile.ZipFile(tmp_path / "part.pt2", "w") as part:
        for name in full.namelist():
            if "/models/" not in name:
                part.writestr(name, full.read(name))
    text = refused(export, tmp_path / "part.pt2", 6)
    assert "cannot read part.pt2 as a file of torch.export.save: it contains 0 programs instead of one" in text


def _graph(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def apply(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return apply


def _call_os(document: dict[str, Any]) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.mkdir"


def _load_library(document: dict[str, Any]) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.load_library.__call__"


def _evaluate(document: dict[str, Any]) -> None:
    features = document["graph_module"]["graph"]["tensor_values"]["features"]
    features["sizes"][0]["as_expr"]["expr_str"] = "__import__('os').mkdir('ran')"


def _read_file(document: dict[str, Any]) -> None:
    document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def _name_as_code(document: dict[str, Any]) -> None:
    document["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"] = "x=__import__('os').mkdir('ran')"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (_read_file, "a call of torch.ops.aten.from_file.default"),
        (_name_as_code, "the name"),
        (_call_os, "a call of torch.os.mkdir"),
        (_load_library, "a call of torch.ops.load_library.__call__"),
        (_evaluate, "the expression"),
    ],
)
def test_a_program_that_could_run_code_is_not_read(
    export: Export,
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], None],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _change(program, tmp_path / "trap.pt2", {"models/model.json": _graph(change)}, {})
    text = refused(export, path, 11)
    assert "trap.pt2 contains more than a graph of tensor operations" in text
    assert part in text
    assert not (tmp_path / "ran").exists()


def test_pickles_and_compiled_code_in_a_program_are_not_read(export: Export, program: Path, tmp_path: Path) -> None:
    trap = Trap(tmp_path / "ran")
    pickled = tmp_path / "inputs.pt"
    torch.save(((trap,), {}), pickled)
    inputs = {"data/sample_inputs/model.pt": lambda _: pickled.read_bytes()}
    assert "posix.mkdir" in refused(export, _change(program, tmp_path / "one.pt2", inputs, {}), 11)
    constants = {"model_constants_config.json": lambda _: b'{"config": {"x": {"use_pickle": true, "path_name": "x"}}}'}
    assert "x, a pickle" in refused(export, _change(program, tmp_path / "two.pt2", constants, {}), 11)
    library = {"data/aotinductor/model/model.so": b"\x7fELF"}
    assert "compiled code" in refused(export, _change(program, tmp_path / "three.pt2", {}, library), 11)
    assert not (tmp_path / "ran").exists()
