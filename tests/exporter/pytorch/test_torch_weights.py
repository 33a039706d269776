"""Tests that the exporter finds weights in the files of training scripts and matches them to modules by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.exporter.pytorch import modules
from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.options.export_options import ModelOptions, Rename
from tpuserve_exporter.sources.torch.weights_file import read_weights
from tpuserve_exporter.sources.torch.weights_matching import restore
from tpuserve_exporter.terms.restore_report import RestoreReport

Saved = dict[str, Any]


def trained(seed: int = 1) -> Saved:
    torch.manual_seed(seed)
    model = modules.tiny()
    model(torch.rand(8, 3))
    return dict(model.state_dict())


def put(folder: Path, saved: object, **options: Any) -> tuple[modules.Tiny, RestoreReport]:  # noqa: ANN401 - any option
    """Save an object, read it, and restore it into a new `tiny`."""
    torch.save(saved, folder / "model.pt")
    model = modules.tiny()
    return model, restore(model, read_weights(folder / "model.pt", unsafe=False), ModelOptions(**options))


def holds(model: nn.Module, expected: Saved) -> bool:
    state = model.state_dict()
    return all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def prefixed(weights: Saved, prefix: str) -> Saved:
    return {prefix + name: tensor for name, tensor in weights.items()}


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model.", "ema_model.module."]
)
@pytest.mark.parametrize("key", [None, "model", "state_dict", "net"])
def test_weights_are_found_however_they_are_wrapped(tmp_path: Path, prefix: str, key: str | None) -> None:
    weights = prefixed(trained(), prefix)
    model, report = put(tmp_path, weights if key is None else {key: weights, "epoch": 3})
    assert holds(model, trained())
    assert not report.problems
    assert len(report.entries) == len(weights)


def test_a_training_checkpoint_gives_its_step_and_leaves_out_the_rest(tmp_path: Path) -> None:
    model = modules.tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(8, 3)).sum().backward()
    optimizer.step()
    saved = {"model": trained(), "optimizer": optimizer.state_dict(), "step": 7, "best": torch.tensor(0.5)}
    torch.save(saved, tmp_path / "model.pt")
    file = read_weights(tmp_path / "model.pt", unsafe=False)
    assert (file.step, file.bookkeeping) == (7, ("best",))
    assert "optimizer.state.0.exp_avg" in file.optimizer_state
    report = put(tmp_path, saved)[1]
    assert (len(report.optimizer_state), report.other_models) == (18, {})


@pytest.mark.parametrize(("weights", "averaged"), [("auto", True), ("model_ema", True), ("raw", False)])
@pytest.mark.parametrize("inner", ["", "network."])
def test_an_average_whose_names_lack_the_dots_is_found(
    tmp_path: Path, inner: str, weights: str, averaged: bool
) -> None:
    parameters = dict(modules.tiny().named_parameters())
    average = {name: value + 0.01 for name, value in trained().items() if name in parameters}
    flat = {f"model_ema.{(inner + name).replace('.', '')}": value for name, value in average.items()}
    counters = {"model_ema.decay": torch.tensor(0.99), "model_ema.num_updates": torch.tensor(5)}
    saved = {"state_dict": {**prefixed(trained(), f"model.{inner}"), **flat, **counters}}
    model, report = put(tmp_path, saved, weights=weights)
    assert not report.problems
    assert holds(model, {**trained(), **(average if averaged else {})})


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantized_weights_with_scales_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = trained()
    saved = {**weights, "hidden.weight": weights["hidden.weight"].to(dtype), "hidden.weight_scale": torch.ones(1)}
    with pytest.raises(CheckpointMismatch, match=r"with a scale \(hidden.weight_scale\).*Multiply each weight"):
        put(tmp_path, saved, allow_unused=("*scale",))


def test_one_of_a_list_of_weights_is_taken_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"fit equally well: '0', '1'\. Choose one with --weights 0"):
        put(tmp_path, [trained(1), trained(2)])
    assert holds(put(tmp_path, [trained(1), trained(2)], weights="1")[0], trained(2))
    assert holds(put(tmp_path, {"models": [trained(1), trained(2)]}, weights="models.0")[0], trained(1))


@pytest.mark.parametrize(("weights", "averaged"), [("auto", True), ("ema", True), ("raw", False)])
@pytest.mark.parametrize("key", ["ema", "model_ema", "state_dict_ema"])
def test_averaged_weights_are_taken_unless_raw_ones_are_asked_for(
    tmp_path: Path, key: str, weights: str, averaged: bool
) -> None:
    model, report = put(tmp_path, {"model": trained(1), key: prefixed(trained(2), "module.")}, weights=weights)
    assert holds(model, trained(2 if averaged else 1))
    assert report.notes == (
        (f"used the averaged weights, '{key}', instead of 'model' (--weights raw uses those)",) * averaged
    )
    assert set(report.other_models) == ({"model"} if averaged else {key})


def test_an_average_of_parameters_alone_takes_buffers_from_the_raw_weights(tmp_path: Path) -> None:
    parameters = {name: tensor for name, tensor in trained(2).items() if "running" not in name}
    shadow = {"decay": 0.99, "shadow": parameters}
    model, report = put(tmp_path, {"model": trained(1), "ema": shadow})
    assert holds(model, trained(1) | parameters)
    assert not report.problems


def test_swa_models_of_torch_are_averages(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(modules.tiny())
    # Until its first update, it has the weights of the untrained model.
    model, report = put(tmp_path, {"model": trained(), "swa": average.state_dict()})
    assert holds(model, trained())
    assert report.notes == ("did not use 'swa', because it averages no weights yet (n_averaged is 0)",)
    with pytest.raises(
        CheckpointMismatch, match=r"no averaged weights\. .*did not use 'swa', because it averages no weights yet"
    ):
        put(tmp_path, {"model": trained(), "swa": average.state_dict()}, weights="ema")
    average.update_parameters(modules.tiny())
    model, report = put(tmp_path, {"model": trained(), "swa": average.state_dict()})
    assert holds(model, dict(average.module.state_dict()))
    assert not report.problems


def test_an_average_is_one_by_its_form_whatever_its_name(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(modules.tiny())
    with pytest.raises(
        CheckpointMismatch, match=r"no other weights\. .* \(n_averaged is 0\)\. --weights raw serves them"
    ):
        put(tmp_path, average.state_dict())
    average.update_parameters(modules.tiny())
    _, report = put(tmp_path, {"model": trained(), "teacher": average.state_dict()})
    assert {(one.kind, one.part) for one in report.origins.values()} == {("average", "teacher")}
    assert put(tmp_path, average.state_dict())[1].notes == ()


@pytest.mark.parametrize("updates", [0, 4])
def test_lightning_swaps_the_average_and_the_model(tmp_path: Path, updates: int) -> None:
    """The callback WeightAveraging saves the average as `state_dict`, with the first weights until its first update."""
    state = {"n_averaged": torch.tensor(updates)}
    saved = {"state_dict": trained(1), "current_model_state": trained(2), "averaging_state": state}
    model, report = put(tmp_path, saved)
    assert holds(model, trained(1 if updates else 2))
    kind = "average" if updates else "parameters"
    assert {one.kind for one in report.origins.values()} == {kind}
    assert holds(put(tmp_path, saved, weights="raw")[0], trained(2))


def test_averages_of_something_else_are_refused_or_left(tmp_path: Path) -> None:
    small = {name: tensor * 1e-3 if tensor.is_floating_point() else tensor for name, tensor in trained().items()}
    for saved in ({"model": trained(), "grad_ema": small}, {"net": trained(), "optimizer": {"exp_avg": small}}):
        model, report = put(tmp_path, saved)
        assert holds(model, trained())
        assert {one.kind for one in report.origins.values()} == {"parameters"}
    with pytest.raises(
        CheckpointMismatch, match=r"'ema' is biased towards zero: it points as 'model' do, but is 0\.001"
    ):
        put(tmp_path, {"model": trained(), "ema": small})


def test_a_set_is_taken_by_its_name(tmp_path: Path) -> None:
    saved = {"a": trained(1), "b": {"teacher": trained(2)}, "ema": trained(1)}
    model, report = put(tmp_path, saved, weights="b.teacher")
    assert holds(model, trained(2))
    assert {(one.kind, one.part) for one in report.origins.values()} == {("parameters", "b.teacher")}
    model, report = put(tmp_path, {"model": trained(1), "ema": trained(1)}, weights="ema")
    described = {(one.kind, one.detail) for name, one in report.origins.items() if "norm" not in name}
    assert described == {("average", "compared with 'model': 1.00 times their length, cosine 1.00")}
    with pytest.raises(CheckpointMismatch, match=r"has no set of this name\. It has 'a', 'b\.teacher', 'ema'"):
        put(tmp_path, saved, weights="c")


def test_weights_of_a_schedule_free_optimizer_in_training_are_said(tmp_path: Path) -> None:
    """The package schedulefree keeps `train_mode` in its groups, and other weights in the module while it is true."""
    optimizer = torch.optim.SGD(modules.tiny().parameters(), 0.1).state_dict()
    for mode in (True, False):
        optimizer["param_groups"][0]["train_mode"] = mode
        notes = put(tmp_path, {"model": trained(), "optimizer": optimizer})[1].notes
        assert any("Call the optimizer's eval() before torch.save" in note for note in notes) is mode


def test_several_sets_that_fit_alike_are_a_mismatch(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="several sets of weights that fit equally well: 'a', 'b'"):
        put(tmp_path, {"a": trained(1), "b": trained(2)})
    assert holds(put(tmp_path, {"student": trained(1), "model": trained(2)})[0], trained(2))


@pytest.mark.parametrize("nested", [True, False])
def test_models_in_one_state_dict_are_told_apart_by_prefixes(tmp_path: Path, nested: bool) -> None:
    wrapper = prefixed(trained(2), "teacher.") | prefixed(trained(1), "student.") | {"step": torch.tensor(3)}
    saved, start = ({"state_dict": wrapper}, "state_dict.") if nested else (wrapper, "")
    with pytest.raises(CheckpointMismatch, match=f"'{start}teacher', '{start}student'.*--weights {start}teacher"):
        put(tmp_path, saved)
    model, report = put(tmp_path, saved, weights=f"{start}student")
    assert holds(model, trained(1))
    assert {one.part for one in report.origins.values()} == {f"{start}student"}
    assert holds(put(tmp_path, saved, allow_unused=("teacher.*",))[0], trained(1))


def test_an_average_in_the_same_state_dict_is_taken(tmp_path: Path) -> None:
    saved = {"state_dict": prefixed(trained(1), "model.") | prefixed(trained(2), "ema_model.")}
    model, report = put(tmp_path, saved)
    assert holds(model, trained(2))
    assert "used the averaged weights, 'state_dict.ema_model'" in report.notes[0]
    assert holds(put(tmp_path, saved, weights="raw")[0], trained(1))
    with pytest.raises(CheckpointMismatch, match="1 unused"):
        put(tmp_path, {"state_dict": saved["state_dict"] | {"head.weight": torch.ones(2)}})


@pytest.mark.parametrize("whole", [True, False])
def test_an_average_may_be_a_list_in_the_order_of_the_parameters(tmp_path: Path, whole: bool) -> None:
    """As torch_ema and diffusers save it."""
    names = [name for name, _ in modules.tiny().named_parameters()][: None if whole else 2]
    shadow = {"num_updates": 9, "shadow_params": [trained(2)[name] for name in names], "collected_params": None}
    model, report = put(tmp_path, {"model": trained(1), "ema": shadow})
    expected = trained(1) | ({name: trained(2)[name] for name in names} if whole else {})
    assert holds(model, expected)
    assert (("average", "ema.shadow_params") in {(one.kind, one.part) for one in report.origins.values()}) is whole


def test_an_average_that_points_elsewhere_is_only_taken_by_option(tmp_path: Path) -> None:
    """The copy of the first weights, before the average's first update, may be anywhere."""
    saved = {"model": trained(), "swa": {name: -value for name, value in trained().items()}}
    with pytest.raises(CheckpointMismatch, match=r"'swa' is far from 'model'.*cosine -1.00"):
        put(tmp_path, saved)
    assert holds(put(tmp_path, saved, weights="swa")[0], saved["swa"])


def test_adapters_next_to_the_weights_are_refused(tmp_path: Path) -> None:
    adapters = {"hidden.lora_A": torch.ones(1, 3), "hidden.lora_B": torch.ones(4, 1)}
    for saved in ({"model": trained(), "adapter": adapters}, trained() | adapters, adapters):
        with pytest.raises(CheckpointMismatch, match=r"has weights of an adapter \("):
            put(tmp_path, saved)
    assert holds(put(tmp_path, {"model": trained(), "lora": adapters}, allow_unused=("lora.*",))[0], trained())


def test_a_set_beside_the_model_is_said(tmp_path: Path) -> None:
    model, report = put(tmp_path, {"model": trained(1), "best_state_dict": trained(2)})
    assert holds(model, trained(1))
    assert "used 'model' of the file, although 'best_state_dict' would also fit" in report.notes[0]


def test_renames_come_before_names_are_matched(tmp_path: Path) -> None:
    weights = {name.replace("hidden", "encoder.fc"): tensor for name, tensor in trained().items()}
    model, report = put(tmp_path, weights, renames=(Rename.parse(r"^encoder\.fc=hidden"),))
    assert holds(model, trained())
    assert not report.problems
    with pytest.raises(CheckpointMismatch, match="gives several tensors of"):
        put(tmp_path, weights, renames=(Rename.parse(r"^\w+\.=x."),))


def test_what_is_allowed_is_let_pass(tmp_path: Path) -> None:
    weights = trained() | {"aux.weight": torch.zeros(2)}
    del weights["norm.bias"]
    options = {"allow_missing": ("norm.*",), "allow_unused": ("aux.*",)}
    model, report = put(tmp_path, weights, **options)
    assert [entry.name for entry in report.entries if entry.allowed] == ["norm.bias", "aux.weight"]
    assert torch.equal(model.norm.bias, torch.zeros(4))


def test_other_float_dtypes_are_cast_and_said(tmp_path: Path) -> None:
    weights = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in trained().items()}
    model, report = put(tmp_path, weights)
    assert "8 cast" in report.summary()
    assert model.hidden.weight.dtype is torch.float32
    assert holds(model, {name: tensor.to(trained()[name].dtype) for name, tensor in weights.items()})


def test_counters_of_batches_may_be_lacking(tmp_path: Path) -> None:
    weights = trained()
    del weights["norm.num_batches_tracked"]
    assert not put(tmp_path, weights)[1].problems


def test_a_tied_parameter_is_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.words, self.logits = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.logits.weight = self.words.weight

    stored = torch.rand(5, 3)
    save_file({"words.weight": stored}, tmp_path / "model.safetensors")
    model = Tied()
    report = restore(model, read_weights(tmp_path / "model.safetensors", unsafe=False), ModelOptions())
    assert not report.problems
    assert torch.equal(model.words.weight, stored)
    assert torch.equal(model.logits.weight, stored)
    save_file({"words.weight": stored, "logits.weight": stored + 1}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointMismatch, match=r"shares one parameter between words\.weight and logits\.weight"):
        restore(model, read_weights(tmp_path / "model.safetensors", unsafe=False), ModelOptions())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_names_of_older_releases_are_read_by_the_hooks_of_the_module(tmp_path: Path, prefix: str) -> None:
    """PyTorch 2.1 renamed the parameters of weight norm (pytorch/pytorch#102999)."""
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    now = {name: torch.rand_like(value) for name, value in module.state_dict().items()}
    renamed = {"0.parametrizations.weight.original0": "0.weight_g", "0.parametrizations.weight.original1": "0.weight_v"}
    torch.save({prefix + renamed.get(name, name): value for name, value in now.items()}, tmp_path / "old.pt")
    report = restore(module, read_weights(tmp_path / "old.pt", unsafe=False), ModelOptions())
    assert holds(module, now)
    assert (len(report.entries), report.problems) == (3, [])


def test_an_adapter_is_refused_with_the_way_to_merge_it(tmp_path: Path) -> None:
    adapter = {f"base_model.model.hidden.lora_{part}.weight": torch.rand(2, 2) for part in "AB"}
    for saved in (adapter, trained() | adapter):
        with pytest.raises(CheckpointMismatch, match=r"lora_A\.weight.*merge_and_unload\(\)"):
            put(tmp_path, saved)
