"""Tests that Keras files with code or references to other files run and read nothing, without TensorFlow."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tpuserve_exporter.errors import UnsafeSource
from tpuserve_exporter.sources.keras.archive import read_archive
from tpuserve_exporter.sources.keras.unsafe_content import find_unsafe_config


def layer(kind: str, module: str = "keras.layers", **config: object) -> dict[str, Any]:
    return {"module": module, "class_name": kind, "config": {"name": "attack", **config}, "registered_name": None}


def function(module: str, name: str) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def model(*layers: object) -> dict[str, Any]:
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": list(layers)}}


@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (layer("Lambda", function={"class_name": "__lambda__", "config": {"code": "…"}}), "Lambda layers (attack)"),
        (layer("Activation", activation={"class_name": "__lambda__", "config": {"code": "…"}}), "lambda layer unnamed"),
        (layer("TFSMLayer", filepath="/tmp/evil"), "TFSMLayer layer attack"),
        (layer("TorchModuleWrapper", "keras.src.utils.torch_utils", state="…"), "TorchModuleWrapper layer attack"),
        (layer("JaxLayer", call_fn="…"), "JaxLayer layer attack"),
        (function("keras.utils", "get_file"), "keras.utils.get_file, which is not a part of models"),
        (function("keras.config", "enable_unsafe_deserialization"), "keras.config.enable_unsafe_deserialization"),
        (function("keras.saving", "load_model"), "keras.saving.load_model"),
        (layer("X", "keras.src.saving.serialization_lib"), "keras.src.saving.serialization_lib.X"),
        (layer("StringLookup", vocabulary="/etc/passwd"), "the file '/etc/passwd' as vocabulary"),
        (layer("TextVectorization", vocabulary="http://host/x"), "the file 'http://host/x' as vocabulary"),
    ],
)
def test_attacks_in_a_configuration_are_named_and_not_read(tmp_path: Path, attack: object, named: str) -> None:
    path = tmp_path / "attack.keras"
    wrapped = model(layer("Bidirectional", layer=attack))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(wrapped))
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.12.0"}))
    with pytest.raises(UnsafeSource) as caught:
        read_archive(path).check_safe(unsafe=False)
    assert named in str(caught.value)
    read_archive(path).check_safe(unsafe=True)


def test_attacks_in_a_file_of_keras_2_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "attack.h5", "w") as file:
        config = {"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": {"name": "x"}}]}}
        file.attrs["model_config"] = json.dumps(config)
        file.attrs["keras_version"] = "2.15.0"
    with pytest.raises(UnsafeSource, match=r"attack\.h5 contains Lambda layers \(x\): Python code"):
        read_archive(tmp_path / "attack.h5").check_safe(unsafe=False)


def write_keras_2(path: Path, config: object, keras_version: str = "2.15.0") -> Path:
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = json.dumps(config)
            file.attrs["keras_version"] = keras_version
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", json.dumps({"keras_version": keras_version}))
    return path


@pytest.mark.parametrize("suffix", [".h5", ".keras"])
@pytest.mark.parametrize(
    ("attack", "named"),
    [
        (layer("TFOpLambda", function="load_library"), "layer attack calls load_library"),
        (layer("TFOpLambda", function="io.gfile.copy"), "layer attack calls io.gfile.copy"),
        (layer("SlicingOpLambda", function="io.write_file"), "layer attack calls io.write_file"),
        (layer("TFOpLambda", function="compat.v1.print"), "calls compat.v1.print"),
        (layer("TFOpLambda", function="nn.fixed_unigram_candidate_sampler"), "calls nn.fixed_unigram_candidate_"),
        (layer("TFOpLambda", function=None), "layer attack calls None"),
        (layer("ClassMethod", cls_symbol="io.TFRecordWriter", method_name="__init__"), "calls io.TFRecordWriter"),
        (layer("ClassMethod", cls_symbol="RaggedTensor", method_name="__reduce__"), "calls RaggedTensor.__reduce__"),
        (layer("InstanceMethod", attr_name="eval"), "layer attack uses eval of an object"),
        (layer("InstanceProperty", attr_name="graph"), "layer attack uses graph of an object"),
        (layer("TensorFlowOpLayer", node_def={"op": "WriteFile"}), "layer attack calls an operation of TensorFlow"),
        (layer("RNN", cell={"class_name": "ResidualWrapper", "config": {"name": "r", "residual_fn_type": "lambda"}}),
         "code as residual_fn of layer r"),
        (layer("X", "tf_keras.src.layers.core.lambda_layer") | {"registered_name": "Lambda"}, "Lambda layers (attack)"),
        (layer("DenseFeatures", columns=[{"config": {"vocabulary_file": "/etc/passwd"}}]), "as vocabulary_file"),
        (function("os", "system"), "system of os, which is not a part of models"),
        (function("builtins", "eval"), "eval of builtins, which is not a part of models"),
        (function("keras.activations", "os.system"), "os.system of keras.activations, which is not"),
        (function("keras.models", "load_model"), "load_model of keras.models, which is not a part of models"),
        (function("tf_keras.src.utils.data_utils", "get_file"), "get_file of tf_keras.src.utils.data_utils"),
        (layer("Model", "my_package.layers"), "Model of my_package.layers, which is not a part of models"),
        (layer("Model", "keras_tricks.layers"), "keras_tricks.layers.Model, which is not a part of models"),
        (layer("__any__", "antigravity"), "__any__ of antigravity, which is not"),
        ({"class_name": "__typespec__", "spec_name": "TensorSpec", "module": "os", "config": []}, "__typespec__ of os"),
        ({"class_name": "deserialize", "config": {"config": {}}}, "deserialize, which is not a class"),
    ],
)  # fmt: skip
def test_calls_and_imports_in_files_of_keras_2_are_named(
    tmp_path: Path, suffix: str, attack: object, named: str
) -> None:
    path = write_keras_2(tmp_path / f"attack{suffix}", model(layer("Bidirectional", layer=attack)))
    with pytest.raises(UnsafeSource) as caught:
        read_archive(path).check_safe(unsafe=False)
    assert named in str(caught.value)
    assert ("name their module, --import pkg.module" in str(caught.value)) is ("Lambda layers" not in named)
    read_archive(path).check_safe(unsafe=True)


def test_the_configuration_that_keras_reads_is_checked(tmp_path: Path) -> None:
    path = write_keras_2(tmp_path / "attack.h5", model(layer("Lambda")))
    with h5py.File(path, "a") as file:
        file.create_group("model_weights").attrs["model_config"] = json.dumps(model(layer("Dense")))
    with pytest.raises(UnsafeSource, match="Lambda"):
        read_archive(path).check_safe(unsafe=False)


def test_ordinary_models_of_keras_2_pass(tmp_path: Path) -> None:
    constructor = layer("ClassMethod", cls_symbol="RaggedTensor", method_name="from_row_splits")
    plain = model(
        layer("TFOpLambda", "tf_keras.src.layers.core.tf_op_layer", function="compat.v1.squeeze"),
        layer("TFOpLambda", function="keras.backend.mean"),
        layer("SlicingOpLambda", function="__operators__.getitem"),
        layer("InstanceMethod", attr_name="to_tensor"),
        constructor,
        layer("Policy", "keras.mixed_precision"),
        layer("Constant", "tensorflow.python.ops.init_ops_v2"),
        layer("LayerScale", "tf_keras.src.applications.convnext"),
        {"class_name": "Custom>MyLayer", "config": {"name": "mine"}},
        {"class_name": "__ellipsis__", "config": None, "module": None, "registered_name": None},
        {"class_name": "__typespec__", "spec_name": "TensorSpec", "module": "tensorflow.python.framework.tensor",
         "config": [[None, 3], "float32", None], "registered_name": None},
        function("builtins", "my_activation"),
        function("keras.activations", "gelu"),
    )  # fmt: skip
    read_archive(write_keras_2(tmp_path / "plain.h5", plain)).check_safe(unsafe=False)


def test_plain_models_pass() -> None:
    plain = model(
        layer("InputLayer"),
        layer("Dense", activation="relu", kernel_initializer=layer("GlorotUniform", "keras.initializers")),
        layer("StringLookup", vocabulary=["a", "b"]),
        layer("Add", "keras.src.ops.numpy"),
        layer("MyLayer", "my_package.layers"),
        layer("DTypePolicy", "keras.dtype_policies"),
        function("builtins", "my_activation"),
    )
    assert list(find_unsafe_config(plain)) == []


def link(file: h5py.File) -> None:
    file["vars"] = h5py.ExternalLink("secret.h5", "/data")


def external_data(file: h5py.File) -> None:
    file.create_dataset("vars", (4,), np.uint8, external=[("secret.bin", 0, 4)])


def virtual_data(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), np.uint8)
    layout[:] = h5py.VirtualSource("secret.h5", "data", (4,))
    file.create_virtual_dataset("vars", layout)


def deep_link(file: h5py.File) -> None:
    group = file.create_group("layers/dense")
    group["again"] = file["layers"]  # a circle
    group["vars"] = h5py.ExternalLink("secret.h5", "/data")


@pytest.mark.parametrize("attack", [link, external_data, virtual_data, deep_link])
def test_weights_that_refer_to_other_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Callable[[h5py.File], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"1234")
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        attack(file)
    with (
        pytest.raises(UnsafeSource, match=r"m\.weights\.h5 refers to other files \(.*vars, "),
        read_archive(tmp_path / "m.weights.h5").opened(),
    ):
        raise AssertionError("the file was opened")


def test_weights_in_one_file_are_opened(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file.create_group("layers/dense")["vars"] = np.arange(4)
        file["alias"] = h5py.SoftLink("/layers")
    with read_archive(tmp_path / "m.weights.h5").opened() as opened:
        assert list(opened.weights["layers/dense/vars"]) == [0, 1, 2, 3]
