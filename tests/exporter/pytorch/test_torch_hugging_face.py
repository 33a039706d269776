"""Tests that a Hugging Face directory becomes a version without a builder, and that its answers match transformers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.exporter.conftest import Finished, read_manifest, without_tried_sizes
from tests.exporter.served import call
from tpuserve_exporter.inspection.look import inspect

transformers = pytest.importorskip("transformers")

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "1,4")
BERT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip


def save(folder: Path, kind: str, config: Any, **saving: object) -> Any:  # noqa: ANN401 - a model of transformers
    """Save a model with random weights, and return it."""
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, **saving)
    return model.eval()


def answers(model: Any, inputs: Mapping[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:  # noqa: ANN401
    with torch.no_grad():
        returned = model(**{name: torch.from_numpy(value) for name, value in inputs.items()})
    return {name: returned[name].float().numpy() for name in names}


def tokens(rows: int, length: int, *lengths: int) -> dict[str, np.ndarray]:
    """Make tokens, and a mask with the given numbers of tokens."""
    random = np.random.default_rng(length)
    mask = (np.arange(length) < np.resize(lengths or (length,), rows)[:, None]).astype(np.int64)
    return {"input_ids": random.integers(1, 40, (rows, length)), "attention_mask": mask}


def one_line(finished: Finished) -> str:
    return " ".join(finished.err.split())


def same(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, atol=1e-5, err_msg=name)


def test_a_directory_needs_no_builder_and_no_inputs(export: Export, tmp_path: Path) -> None:
    model = save(tmp_path / "bert", "BertForSequenceClassification", transformers.BertConfig(**BERT, num_labels=3))
    finished = export(tmp_path / "bert", tmp_path / "base", *SIZES)
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "base/1")
    assert (manifest["source"]["kind"], manifest["source"]["name"]) == ("huggingface", "bert")
    signature = manifest["signatures"]["serving_default"]
    inputs_of = without_tried_sizes(signature["inputs"])
    assert inputs_of.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert all(one == {"dtype": "int64", "shape": [None, None]} for one in inputs_of.values())
    for rows, length in ((1, 1), (4, 7), (3, 32)):
        inputs = tokens(rows, length, length, 1)
        inputs["token_type_ids"] = inputs["input_ids"] % 2
        same(call(tmp_path / "base/1", **inputs), answers(model, inputs, "logits"))


NAMED = {"id2label": {0: "routine", 1: "soon", 2: "urgent"}}


def test_class_names_come_from_the_configuration(export: Export, tmp_path: Path) -> None:
    save(tmp_path / "bert", "BertForSequenceClassification", transformers.BertConfig(**BERT, **NAMED))
    labelled = tmp_path / "rows.npz"
    named = np.array(["soon", "urgent", "routine", "urgent"])
    rows: dict[str, Any] = {"label": named, "token_type_ids": np.zeros((4, 8), np.int64), **tokens(4, 8)}
    np.savez(labelled, **rows)
    measured = ("--labelled", labelled, "--expect", "accuracy>=0")
    finished = export(tmp_path / "bert", tmp_path / "base", *SIZES, "--sequence-buckets", "8", *measured)
    assert finished.code == 0, finished.err
    version = tmp_path / "base/1"
    assert (version / read_manifest(version)["labels"]).read_text() == "routine\nsoon\nurgent\n"
    [metric] = read_manifest(version)["evaluation"]["metrics"]
    expected = [list(NAMED["id2label"].values()).index(name) for name in named]
    inputs = {name: value for name, value in rows.items() if name != "label"}
    assert metric["value"] == np.mean(call(version, **inputs)["logits"].argmax(1) == expected)


def test_the_option_replaces_the_names_of_the_configuration(export: Export, tmp_path: Path) -> None:
    save(tmp_path / "bert", "BertForSequenceClassification", transformers.BertConfig(**BERT, **NAMED))
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    finished = export(tmp_path / "bert", tmp_path / "base", *SIZES, "--labels", tmp_path / "labels.txt")
    assert finished.code == 0, finished.err
    assert (tmp_path / "base/1/assets.extra/labels.txt").read_text() == "a\nb\nc\n"


def test_options_choose_the_class_settings_inputs_and_outputs(export: Export, tmp_path: Path) -> None:
    save(tmp_path / "roberta", "RobertaForMaskedLM", transformers.RobertaConfig(**BERT, pad_token_id=1))
    chosen = ("--model", "transformers:RobertaModel", "--model-arg", "output_hidden_states=true", *SIZES)
    unused = ("--allow-unused", "lm_head.*", "--allow-missing", "pooler.*")
    named = ("--input", "input_ids", "--input", "attention_mask:int32[batch,length]", "--output", "last_hidden_state")
    finished = export(tmp_path / "roberta", tmp_path / "base", *chosen, *unused, *named)
    assert finished.code == 0, finished.err
    signature = read_manifest(tmp_path / "base/1")["signatures"]["serving_default"]
    assert without_tried_sizes(signature["inputs"])["attention_mask"] == {"dtype": "int32", "shape": [None, None]}
    assert list(signature["outputs"]) == ["last_hidden_state"]
    model = transformers.RobertaModel.from_pretrained(tmp_path / "roberta")
    inputs = tokens(2, 8, 8, 3)
    inputs["attention_mask"] = inputs["attention_mask"].astype(np.int32)
    same(call(tmp_path / "base/1", **inputs), answers(model, inputs, "last_hidden_state"))

    finished = export(tmp_path / "roberta", tmp_path / "no", *chosen[:2], "--model-arg", "heads=3")
    assert (finished.code, "--model-arg heads: RobertaConfig has no such setting" in one_line(finished)) == (7, True)


@pytest.mark.parametrize("form", ["pytorch_model.bin", "shards", "bfloat16"])
def test_every_form_of_weights_is_read(export: Export, tmp_path: Path, form: str) -> None:
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=32)
    folder = tmp_path / "gpt2"
    model = save(folder, "GPT2LMHeadModel", config, **({"max_shard_size": "4KB"} if form == "shards" else {}))
    if form == "shards":
        assert (folder / "model.safetensors.index.json").is_file()
    if form == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / form)
    if form == "bfloat16":
        model = model.to(torch.bfloat16)
        model.save_pretrained(folder)
    inputs = tokens(6, 9, 9, 4)
    labels = np.where(inputs["attention_mask"][:, 1:] > 0, inputs["input_ids"][:, 1:], -100)
    labels = np.pad(labels, ((0, 0), (0, 1)), constant_values=-100)
    rows: dict[str, Any] = {"labels": labels, **inputs}
    np.savez(tmp_path / "rows.npz", **rows)
    measured = ("--labelled", tmp_path / "rows.npz", "--expect", "perplexity(logits)<1e6")
    finished = export(folder, tmp_path / "base", *SIZES, "--sequence-buckets", "8,16", *measured)
    assert finished.code == 0, finished.err
    served, expected = call(tmp_path / "base/1", **inputs)["logits"], answers(model, inputs, "logits")["logits"]
    coarse = form == "bfloat16"
    np.testing.assert_allclose(np.float32(served), expected, atol=5e-2 if coarse else 1e-5)
    loss = torch.nn.functional.cross_entropy(torch.tensor(expected).flatten(0, 1), torch.tensor(labels).flatten())
    [metric] = read_manifest(tmp_path / "base/1")["evaluation"]["metrics"]
    assert metric["value"] == pytest.approx(float(loss.exp()), rel=1e-2 if coarse else 1e-5)
    found = inspect(folder)
    assert (found.kind, found.facts["architectures"], len(found.arrays) > 10) == (
        "Hugging Face model", "GPT2LMHeadModel", True,
    )  # fmt: skip


def refuse(export: Export, folder: Path, config: Mapping[str, object]) -> Finished:
    """Export a directory after a change of its config.json."""
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stored, **config}))
    return export(folder, folder.parent / "refused")


def test_a_directory_that_does_not_fit_is_refused_in_one_line(export: Export, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    save(folder, "BertModel", transformers.BertConfig(**BERT))
    finished = refuse(export, folder, {"intermediate_size": 48})
    assert (finished.code, "does not fit BertModel of transformers" in one_line(finished)) == (2, True)
    assert "3 shape differs" in one_line(finished)
    finished = refuse(export, folder, {"num_hidden_layers": 2, "intermediate_size": 32})
    assert (finished.code, "16 missing" in one_line(finished)) == (2, True)
    finished = refuse(export, folder, {"architectures": ["MyBert"], "auto_map": {"AutoModel": "mine.MyBert"}})
    assert finished.code == 7
    assert "has no PyTorch model MyBert, which config.json of bert names. Its code is in the" in one_line(finished)
    finished = export(folder, tmp_path / "refused", "--model", "builtins:dict", "--from", "huggingface")
    assert (finished.code, "builtins:dict is no model class of transformers" in one_line(finished)) == (2, True)
    finished = refuse(export, folder, {"quantization_config": {"quant_method": "gptq"}})
    assert (finished.code, "bert is quantized (gptq)" in one_line(finished)) == (4, True)
    assert not (tmp_path / "refused").exists()


def test_sequences_longer_than_the_model_takes_are_refused(export: Export, tmp_path: Path) -> None:
    save(tmp_path / "roberta", "RobertaModel", transformers.RobertaConfig(**BERT, pad_token_id=1))
    finished = export(tmp_path / "roberta", tmp_path / "base", *SIZES, "--sequence-buckets", "16,32")
    assert (finished.code, "roberta takes sequences of at most 30 tokens" in one_line(finished)) == (2, True)


@pytest.mark.parametrize("form", ["vit", "vit/model.safetensors", "vit.pt"])
def test_a_builder_gets_weights_with_the_names_of_transformers_4(export: Export, tmp_path: Path, form: str) -> None:
    """Release 5 still writes the names of release 4, and torch.save those of the release that trained."""
    model = save(tmp_path / "vit", "ViTModel", VIT)
    old = load_file(tmp_path / "vit/model.safetensors")
    assert "encoder.layer.0.attention.attention.query.weight" in old
    torch.save({"model": {f"backbone.{name}": value for name, value in old.items()}}, tmp_path / "vit.pt")
    wrapped = "true" if form == "vit.pt" else "false"
    built = ("--model", f"{__name__}:vit", "--model-arg", f"wrapped={wrapped}", *SIZES)
    finished = export(tmp_path / form, tmp_path / "base", *built, "--input", "pixel_values:float32[batch,3,16,16]")
    assert finished.code == 0, finished.err
    pixels = np.random.default_rng(0).random((2, 3, 16, 16), dtype=np.float32)
    expected = answers(model, {"pixel_values": pixels}, "last_hidden_state")["last_hidden_state"]
    np.testing.assert_allclose(call(tmp_path / "base/1", pixel_values=pixels)["outputs"], expected, atol=1e-5)


VIT = transformers.ViTConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
)


class Wrapped(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self) -> None:
        super().__init__()
        self.backbone = transformers.ViTModel(VIT)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.backbone(pixel_values).last_hidden_state


def vit(wrapped: bool) -> torch.nn.Module:
    if wrapped:
        return Wrapped()
    model = transformers.ViTModel(VIT)
    forward = model.forward
    model.forward = lambda pixel_values: forward(pixel_values).last_hidden_state
    return model
