"""Tests that the files of PyTorch training become versions that match PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.exporter.conftest import Finished, read_manifest, without_tried_sizes
from tests.exporter.pytorch import modules
from tests.exporter.served import call
from tpuserve_exporter import export as export_live
from tpuserve_exporter.errors import OptionConflict, TrainingMode
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.sources.torch.program import Module
from tpuserve_exporter.sources.torch.saved_program import SavedProgram

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "1,4")
MODULES = "tests.exporter.pytorch.modules"
ROWS = np.random.default_rng(3).random((3, 3)).astype(np.float32)


def built(name: str, *inputs: str) -> tuple[str, ...]:
    arguments = [part for one in inputs for part in ("--input", one)]
    return ("--model", f"{MODULES}:{name}", *arguments, *SIZES)


TINY = built("tiny", "features:float32[batch,3]")


def answers(module: torch.nn.Module, *inputs: np.ndarray) -> list[np.ndarray]:
    with torch.no_grad():
        returned = module.eval()(*map(torch.from_numpy, inputs))
    return [value.numpy() for value in (returned if isinstance(returned, tuple) else (returned,))]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the example for an epoch and return its directory."""
    from examples.torch_classifier.train import train

    folder = tmp_path_factory.mktemp("example")
    assert train(folder, epochs=1) > 0.5
    return folder


@pytest.mark.parametrize("name", ["checkpoint.pt", "model.safetensors", "model.pt2"])
def test_every_form_of_the_example_is_served(export: Export, example: Path, tmp_path: Path, name: str) -> None:
    from examples.torch_classifier.example import answer, requests

    model = ("--model", "examples.torch_classifier.model:build", "--input", "image:float32[batch,1,8,8]")
    finished = export(example / name, tmp_path / "digits", *(() if name.endswith(".pt2") else model), *SIZES)
    assert finished.code == 0, finished.err
    assert "Warning" not in finished.err
    manifest = read_manifest(tmp_path / "digits/1")
    assert (manifest["source"]["kind"], manifest["source"]["name"]) == ("torch", name)
    assert manifest["source"]["step"] == (22 if name == "checkpoint.pt" else None)
    signature = manifest["signatures"]["serving_default"]
    assert without_tried_sizes(signature["inputs"]) == {"image": {"dtype": "float32", "shape": [None, 1, 8, 8]}}
    assert signature["rows_independent"]
    request = requests()[1]
    served, expected = call(tmp_path / "digits/1", **request), answer(example / "checkpoint.pt", request)
    assert served.keys() == expected.keys() == {"probabilities", "embedding"}
    for output, want in expected.items():
        np.testing.assert_allclose(served[output], want, atol=1e-5)


def test_shards_of_safetensors_are_one_model(export: Export, trained: modules.Tiny, tmp_path: Path) -> None:
    halves: list[dict[str, torch.Tensor]] = [{}, {}]
    for index, (name, tensor) in enumerate(trained.state_dict().items()):
        halves[index % 2][name] = tensor
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for shard, half in zip(shards, halves, strict=True):
        save_file(half, tmp_path / shard)
    placed = {name: shard for shard, half in zip(shards, halves, strict=True) for name in half}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    finished = export(tmp_path, tmp_path / "base/tiny", *TINY)
    assert finished.code == 0, finished.err
    served = call(tmp_path / "base/tiny/1", features=ROWS)
    np.testing.assert_allclose(served["outputs"], answers(trained, ROWS)[0], atol=1e-6)

    (tmp_path / shards[1]).unlink()
    finished = export(tmp_path / "model.safetensors.index.json", tmp_path / "again", *TINY)
    assert (finished.code, f"lists shards that are missing: {shards[1]}" in " ".join(finished.err.split())) == (6, True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sequences_of_any_length_keep_their_integers(export: Export, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = modules.encoder()
    torch.save(model.state_dict(), tmp_path / "encoder.pt")
    options = built("encoder", "ids:int64[batch,length]", "mask:int64[batch,length]")
    finished = export(tmp_path / "encoder.pt", tmp_path / "base", *options, "--sequence-buckets", "8,16")
    assert finished.code == 0, finished.err
    signature = read_manifest(tmp_path / "base/1")["signatures"]["serving_default"]
    assert without_tried_sizes(signature["inputs"])["ids"] == {"dtype": "int64", "shape": [None, None]}
    assert signature["outputs"]["longest"] == {"dtype": "int64", "shape": [None]}
    ids = np.random.default_rng(0).integers(1, 50, (2, 11))
    mask = (np.arange(11) < [[11], [4]]).astype(np.int64)
    served = call(tmp_path / "base/1", ids=ids, mask=mask)
    pooled, longest = answers(model, ids, mask)  # with torch's fast path, which makes nested tensors from the mask
    assert torch.backends.mha.get_fastpath_enabled()
    np.testing.assert_allclose(served["pooled"], pooled, atol=1e-6)
    np.testing.assert_array_equal(served["longest"], longest)


@pytest.mark.parametrize("cut", [False, True], ids=["looked up", "cut"])
def test_a_version_refuses_lengths_beyond_the_table_of_positions(export: Export, tmp_path: Path, cut: bool) -> None:
    import tensorflow as tf

    model = modules.Positions(cut)
    torch.save(model.state_dict(), tmp_path / "positions.pt")
    options = (*built("Positions", "ids:int64[batch,length]"), "--model-arg", f"cut={json.dumps(cut)}")
    finished = export(tmp_path / "positions.pt", tmp_path / "base", *options)
    assert finished.code == 0, finished.err
    ids = np.random.default_rng(1).integers(0, 50, (3, 21))
    served = call(tmp_path / "base/1", ids=ids[:, :20])
    np.testing.assert_allclose(next(iter(served.values())), answers(model, ids[:, :20])[0], atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="input ids can be at most 20 long"):
        call(tmp_path / "base/1", ids=ids)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings_are_served(export: Export, tmp_path: Path, mode: str) -> None:
    torch.manual_seed(3)
    model = modules.bag(mode)
    torch.save(model.state_dict(), tmp_path / "bag.pt")
    options = (*built("bag", "items:int64[batch,6]"), "--model-arg", f"mode={mode}")
    finished = export(tmp_path / "bag.pt", tmp_path / "base", *options)
    assert finished.code == 0, finished.err
    items = np.random.default_rng(1).integers(0, 20, (5, 6))
    items[0] = 0  # only padding
    served = call(tmp_path / "base/1", items=items)
    np.testing.assert_allclose(served["outputs"], answers(model, items)[0], atol=1e-6)


def test_a_module_that_counts_its_rows_gets_a_program_for_each_size(export: Export, tmp_path: Path) -> None:
    torch.save(modules.row_by_row().state_dict(), tmp_path / "rows.pt")
    finished = export(tmp_path / "rows.pt", tmp_path / "base", *built("row_by_row", "x:float32[batch,3]"))
    assert finished.code == 0, finished.err
    assert "the model's code fixes the rows of x" in finished.out
    served = call(tmp_path / "base/1", x=ROWS)
    np.testing.assert_allclose(served["outputs"], ROWS @ np.arange(3.0, dtype=np.float32), rtol=1e-6)


def test_computing_in_bfloat16_leaves_dtypes_as_they_are(export: Export, trained: modules.Tiny, tmp_path: Path) -> None:
    torch.save(trained.state_dict(), tmp_path / "tiny.pt")
    finished = export(tmp_path / "tiny.pt", tmp_path / "base", *TINY, "--compute-dtype", "bfloat16", "--output", "y")
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "base/1")
    assert manifest["compute_dtype"] == "mixed_bfloat16"
    assert manifest["signatures"]["serving_default"]["outputs"] == {"y": {"dtype": "float32", "shape": [None, 2]}}
    gap = np.abs(call(tmp_path / "base/1", features=ROWS)["y"] - answers(trained, ROWS)[0]).max()
    assert 1e-6 < gap < 5e-2


@pytest.mark.parametrize("as_program", [False, True])
def test_a_model_of_this_process_is_served_and_stays_as_it_is(
    tensorflow: None, tmp_path: Path, as_program: bool
) -> None:
    torch.manual_seed(4)
    model = modules.tiny()
    model(torch.rand(8, 3))
    expected = answers(model, ROWS)[0]
    live: object = model.train()
    if as_program:
        rows = {0: torch.export.Dim("batch")}
        live = torch.export.export(model.eval(), (torch.from_numpy(ROWS),), dynamic_shapes=(rows,))
    published = export_live(
        live, tmp_path / "tiny", input="features:float32[batch,3]", batch_sizes=(1, 4), progress=False
    )
    assert published.version == 1
    assert model.training is not as_program
    np.testing.assert_allclose(call(tmp_path / "tiny/1", features=ROWS)["outputs"], expected, atol=1e-6)


def test_what_of_torch_is_no_model_is_refused(tensorflow: None, tmp_path: Path) -> None:
    with pytest.raises(OptionConflict, match=r"cannot export torch.Tensor. From torch, pass an nn.Module or a program"):
        export_live(torch.zeros(1), tmp_path / "base", progress=False)


@pytest.mark.parametrize(("rows", "noted"), [(1, True), (2, False)])
def test_a_program_that_was_traced_with_one_row_says_so(rows: int, noted: bool) -> None:
    example = (torch.from_numpy(ROWS[:rows]),)
    program = torch.export.export(modules.tiny().eval(), example, dynamic_shapes=({0: torch.export.Dim.AUTO},))
    notes = " ".join(SavedProgram(program, []).report().notes)
    assert ("exactly 1 row(s)" in notes) is noted


def test_batch_statistics_without_running_ones_are_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2, track_running_stats=False)).eval()
    model = Module(module, {"x": JaxInput("float32", ("batch", 3))})
    with pytest.raises(TrainingMode, match=r"in 1 \(track_running_stats=False\)"):
        model.call({"x": torch.from_numpy(ROWS[:1])})
