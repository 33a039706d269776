"""Tests for `tpuserve export --device-programs`: the programs and their weights match the source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import export as jax_export
from safetensors import safe_open

from tests.exporter import builders, device_builders, flax_builders
from tests.exporter.conftest import Finished, read_manifest
from tests.support.sequence_models import save_tagger
from tpuserve_exporter import api
from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.version.loaded_model import open_session

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
PROGRAMS = ("--device-programs", "--batch-sizes", "1,4")


def save(path: Path, model: Any) -> Path:  # noqa: ANN401 - a Keras model
    model.save(path)
    return path


def run_program(version: Path, part: str, index: int, inputs: list[Any]) -> list[Any]:
    """Run a program with only public interfaces and the manifest, like any PJRT client."""
    device = read_manifest(version)["device"]
    described = device["parts"][part]
    program = jax_export.deserialize(bytearray((version / described["programs"][index]["file"]).read_bytes()))
    with safe_open(version / device["weights"], "flax") as weights, jax.enable_x64(True):
        arguments = [*inputs, *(weights.get_tensor(name) for name in described["weights"])]
        return [np.asarray(one) for one in jax.jit(program.call)(*arguments)]


def ways(version: Path, signature: str = "serving_default") -> set[str]:
    buckets = read_manifest(version)["parity"]["signatures"][signature]["buckets"]
    return {f"{one['batch_size']} by {one['loaded_by']}" for one in buckets}


def test_a_checkpoints_model_has_a_checked_program_for_each_batch_size(
    export: Export, digits_checkpoint: Path, tmp_path: Path
) -> None:
    finished = export(digits_checkpoint, tmp_path / "m", "--model", "examples.digits.model:build", *PROGRAMS)
    assert finished.code == 0, finished.err
    assert {"1 by program", "4 by program"} <= ways(tmp_path / "m/1")
    device = read_manifest(tmp_path / "m/1")["device"]
    assert device["calling_convention_version"] == 10
    assert device["lowered_with"].keys() == {"tensorflow", "jax", "jaxlib"}
    part = device["parts"]["device"]
    assert part["inputs"] == {"image": {"dtype": "float32", "shape": [None, 8, 8, 1]}}
    assert part["compute_dtype"] == "mixed_bfloat16"
    assert [one["batch_size"] for one in part["programs"]] == [1, 4]
    files = read_manifest(tmp_path / "m/1")["files"]
    assert {device["weights"], *(one["file"] for one in part["programs"])} <= files.keys()
    image = np.random.default_rng(0).random((4, 8, 8, 1)).astype(np.float32)
    served = run_program(tmp_path / "m/1", "device", 1, [image])[0]
    assert served.shape == (4, 10)
    np.testing.assert_allclose(served.sum(axis=1), 1.0, atol=1e-2)


def test_a_program_tells_nothing_of_the_machine_and_is_the_same_again(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    model = save(tmp_path / "model.keras", device_builders.recurrent())
    assert export(model, tmp_path / "m", *PROGRAMS).code == 0
    program = (tmp_path / "m/1/assets.extra/tpuserve/programs/device/b4.jaxexport").read_bytes()
    assert b"lstm" in program  # names for profiles
    assert b".py" not in program
    assert export(model, tmp_path / "m", *PROGRAMS).code == 0
    assert not (tmp_path / "m/2").exists()


def test_a_saved_model_has_a_part_for_each_signature(export: Export, tmp_path: Path) -> None:
    tagger = save_tagger(tmp_path / "tagger", mask=True)
    finished = export(tagger, tmp_path / "m", *PROGRAMS, "--sequence-buckets", "8,16", "--pad-value", "ids=3")
    assert finished.code == 0, finished.err
    programs = read_manifest(tmp_path / "m/1")["device"]["parts"]["serving_default"]["programs"]
    assert [(one["batch_size"], one["sequence_length"]) for one in programs] == [(1, 8), (1, 16), (4, 8), (4, 16)]
    assert programs[3]["file"].endswith("serving_default/b4_s16.jaxexport")
    assert {"4 by program of length 8", "4 by program of length 16"} <= ways(tmp_path / "m/1")


def test_64_bits_stay_64_bits(export: Export, tensorflow: None, tmp_path: Path) -> None:
    finished = export(save(tmp_path / "model.keras", device_builders.wide()), tmp_path / "m", *PROGRAMS)
    assert finished.code == 0, finished.err
    assert (
        "'ids' (int64) and 'table/embeddings' (float64) and 'mean' (float64) and 1 more of device have 64 bits"
        in finished.out
    )
    assert "device programs: 2 for batches of 1, 4; `tpuserve check` shows whether they fit on a TPU" in finished.out
    ids = np.array([[1, 2, 3, 1]], np.int64)
    by_name = dict(
        zip(
            read_manifest(tmp_path / "m/1")["device"]["parts"]["device"]["outputs"],
            run_program(tmp_path / "m/1", "device", 0, [ids]),
            strict=True,
        )
    )
    assert by_name["sum"].tolist() == [7]
    assert (by_name["sum"].dtype, by_name["mean"].dtype) == (np.int64, np.float64)


def test_a_jax_model_is_lowered_from_its_own_function(tensorflow: None, tmp_path: Path) -> None:
    kernel = np.random.default_rng(1).random((3, 2)).astype(np.float32)
    apply, _ = flax_builders.applied()
    version = api.export(
        (apply, {"kernel": kernel}),
        tmp_path / "m",
        input=["x:float32[batch,3]", "scale:float32[batch]"],
        device_programs=True,
        batch_sizes=(1, 4),
        progress=False,
    )
    assert version.version == 1
    x, scale = np.ones((4, 3), np.float32), np.arange(4, dtype=np.float32)
    outputs = read_manifest(tmp_path / "m/1")["device"]["parts"]["device"]["outputs"]
    served = dict(zip(outputs, run_program(tmp_path / "m/1", "device", 1, [x, scale]), strict=True))
    np.testing.assert_allclose(served["scores"], x @ kernel * scale[:, None], rtol=1e-6)


def test_what_the_host_does_is_cut_from_what_the_device_does(export: Export, tensorflow: None, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\nowl\n")
    requested = (
        "serving_default=tensor",
        "photo=image_bytes,scale=0..1",
        "classes=classify",
        "area=regress,value=area",
    )
    flags = [flag for one in requested for flag in ("--signature", one)]
    model = save(tmp_path / "model.keras", builders.pictures())
    finished = export(model, tmp_path / "m", *flags, "--labels", tmp_path / "labels.txt", *PROGRAMS)
    assert finished.code == 0, finished.err
    version = tmp_path / "m/1"
    for name in ("serving_default", "photo", "classes", "area"):
        assert {"1 by program", "4 by program"} <= ways(version, name)
    signatures = read_manifest(version)["device"]["signatures"]
    assert signatures["serving_default"]["host"] is None
    path = "assets.extra/tpuserve/host"
    host = {"model": path, "before": "photo/before", "after": None}
    assert signatures["photo"]["host"] == host
    assert signatures["photo"]["outputs"] == {"probabilities": "probabilities", "area": "area"}
    assert signatures["classes"]["host"] == {**host, "before": "classes/before", "after": "classes/after"}
    with open_session(version / path) as session:
        after = session.signatures["classes/after"]
        assert (list(after.inputs), list(after.outputs)) == (["area", "probabilities"], ["classes", "scores"])
    # The host part has none of the model's weights.
    kept = tf.train.list_variables(str(version / path / "variables/variables"))
    assert [name for name, _ in kept] == ["_CHECKPOINTABLE_OBJECT_GRAPH"]


def test_words_are_looked_up_on_the_host_and_padded_for_the_device(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    model = save(tmp_path / "model.keras", device_builders.texts())
    text = ("--signature", "serving_default=tests.exporter.signature_functions:any_words")
    np.savez(tmp_path / "check.npz", text=np.array([b"one two", b"zero", b"two seven one", b"one"]))
    rest = ("--check", tmp_path / "check.npz", "--sequence-buckets", "4,8", "--pad-value", "ids=0")
    finished = export(model, tmp_path / "m", *text, *rest, *PROGRAMS)
    assert finished.code == 0, finished.err
    version = tmp_path / "m/1"
    assert {"4 by program of length 4", "4 by program of length 8"} <= ways(version)
    device = read_manifest(version)["device"]
    assert device["parts"]["device"]["inputs"] == {"ids": {"dtype": "int32", "shape": [None, None], "pad_value": 0}}
    with open_session(version / device["signatures"]["serving_default"]["host"]["model"]) as session:
        before = session.signatures["serving_default/before"]
        found = session.run(before, {"text": np.array([b"two one", b"seven"], object)})
        assert found["ids"].tolist() == [[3, 2], [4, 0]]
        with pytest.raises(tf.errors.InvalidArgumentError, match="no words"):
            session.run(before, {"text": np.array([b""], object)})


@pytest.mark.parametrize(("sibling", "warned"), [((), True), (("--signature", "tokens=tensor"), False)])
def test_rows_that_depend_on_others_on_the_host_alone_are_padded_where_the_model_s_do_not(
    export: Export, tensorflow: None, tmp_path: Path, sibling: tuple[str, ...], warned: bool
) -> None:
    tagger = save_tagger(tmp_path / "tagger")
    samples: dict[str, Any] = {"text": np.array([b"one two", b"zero", b"two seven one", b"one"])}
    if sibling:
        samples["ids"] = np.array([[2, 3], [1, 1], [3, 4], [2, 2]], np.int32)
    np.savez(tmp_path / "check.npz", **samples)
    text = ("--signature", "serving_default=tests.exporter.signature_functions:any_words", *sibling)
    rest = ("--check", tmp_path / "check.npz", "--sequence-buckets", "4")
    finished = export(tagger, tmp_path / "m", *text, *rest, *PROGRAMS)
    assert finished.code == 0, finished.err
    assert "a row of serving_default depends on the batch size: output 'attention' has shape" in finished.out
    assert ("serving_default: its device programs take exactly 1, 4 rows" in finished.out) is warned


def test_a_signature_that_asks_the_model_twice_has_no_program(export: Export, tensorflow: None, tmp_path: Path) -> None:
    model = save(tmp_path / "model.keras", builders.tiny())
    twice = ("--signature", "twice=tests.exporter.signature_functions:averaged")
    finished = export(model, tmp_path / "m", "--signature", "once=tensor", *twice, *PROGRAMS)
    assert finished.code == 0, finished.err
    assert "twice calls the model 2 times, but the host part around a device part calls it exactly once" in finished.out
    assert read_manifest(tmp_path / "m/1")["device"]["signatures"].keys() == {"once", "serving_default"}
    assert "1 by program" not in ways(tmp_path / "m/1", "twice")


def test_a_tpus_products_are_emulated_on_request(tensorflow: None, tmp_path: Path) -> None:
    model = device_builders.recurrent()
    api.export(model, tmp_path / "m", tpu_numerics=True, batch_sizes=(1, 4), progress=False)
    numerics = read_manifest(tmp_path / "m/1")["device"]["numerics"]
    assert numerics["emulated"] == "products of bfloat16"
    found = numerics["signatures"]["serving_default"]["outputs"]["scores"]
    assert 1e-6 < found["max_abs_difference"] < 0.02
    assert read_manifest(tmp_path / "m/1")["parity"]["max_abs_difference"] < 1e-6
    # The emulation is not part of the version, so the second export finds no change.
    again = api.export(model, tmp_path / "m", device_programs=True, batch_sizes=(1, 4), progress=False)
    assert not again.published


def test_rows_that_depend_on_others_must_be_a_programs(tensorflow: None, tmp_path: Path) -> None:
    model = builders.row_dependent()
    version = api.export(model, tmp_path / "m", device_programs=True, batch_sizes=(1, 4), progress=False)
    assert any("programs take exactly 1, 4 rows" in warning for warning in version.warnings)


def test_what_has_strings_in_a_saved_model_stays_on_the_cpu(export: Export, tensorflow: None, tmp_path: Path) -> None:
    module = tf.Module()
    module.weight = tf.Variable([1.0, 2.0], name="weight")
    spec = tf.TensorSpec([None, 2], tf.float32, "x")
    numbers = tf.function(lambda x: {"y": x * module.weight}, input_signature=[spec])
    text = tf.function(lambda x: {"y": tf.strings.as_string(x * module.weight)}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path / "s"), signatures={"serving_default": numbers, "text": text})
    finished = export(tmp_path / "s", tmp_path / "m", *PROGRAMS)
    assert finished.code == 0, finished.err
    assert "text has strings, and a SavedModel does not show where its host part ends" in finished.out
    assert read_manifest(tmp_path / "m/1")["device"]["signatures"].keys() == {"serving_default"}
    assert "weight" in read_manifest(tmp_path / "m/1")["device"]["parts"]["serving_default"]["weights"]
    tf.saved_model.save(module, str(tmp_path / "t"), signatures={"serving_default": text})
    refused = export(tmp_path / "t", tmp_path / "n", *PROGRAMS)
    assert (refused.code, "every signature has strings (serving_default(x: float32[?, 2])" in refused.err) == (4, True)


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (device_builders.suppressing, r"a TPU does not support CombinedNonMaxSuppression \(in functional\w*/detector"),
        (device_builders.spelling, "output 'text' hold\\(s\\) strings, but a TPU has none"),
        (device_builders.counting, "changes its own variables when it is called"),
        (
            device_builders.of_any_length,
            r"'steps' .*--sequence-buckets .* or set a size with --input 'steps:float32\[batch,SIZE,3\]' \(the",
        ),
    ],
    ids=["operation", "strings", "state", "free"],
)
def test_what_cannot_be_lowered_is_named(
    tensorflow: None, tmp_path: Path, builder: Callable[[], Any], message: str
) -> None:
    with pytest.raises(CannotLower, match=message):
        api.export(builder(), tmp_path / "m", device_programs=True, batch_sizes=(1, 4), progress=False)
    assert not (tmp_path / "m").exists()
