"""Tests for `tpuserve export --also tflite`: converted from the device part, and checked with LiteRT."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from tests.e2e.running_server import run_server
from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest
from tpuserve_client import Client

pytestmark = [
    pytest.mark.xdist_group(__name__),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
ALSO = ("--also", "tflite", "--batch-sizes", "1,4")
ROWS = np.random.default_rng(3).random((3, 3)).astype(np.float32)


@pytest.fixture
def tiny(tensorflow: None, tmp_path: Path) -> Path:
    builders.tiny().save(tmp_path / "tiny.keras")
    return tmp_path / "tiny.keras"


def test_the_model_for_litert_is_checked_and_listed(export: Export, tiny: Path, tmp_path: Path) -> None:
    signatures = ("--signature", "serving_default=tensor", "--signature", "examples=tf_example")
    finished = export(tiny, tmp_path / "m", *signatures, *ALSO, "--json")
    assert (finished.code, finished.err) == (0, ""), finished.err
    manifest = read_manifest(tmp_path / "m/1")
    assert manifest["files"]["model.tflite"]["size_bytes"] == (tmp_path / "m/1/model.tflite").stat().st_size
    ways = {name: {one["loaded_by"] for one in found["buckets"]} for name, found in parity(manifest).items()}
    assert ways == {"serving_default": {"session", "Python", "LiteRT"}, "examples": {"session", "Python"}}

    requests = (tmp_path / "m/1/assets.extra/tf_serving_warmup_requests").read_bytes()
    assert b"serving_default" in requests
    assert b"examples" not in requests  # a server that runs model.tflite would fail to load with them

    interpreter = Interpreter(str(tmp_path / "m/1/model.tflite"))
    assert list(interpreter.get_signature_list()) == ["serving_default"]
    answer = interpreter.get_signature_runner("serving_default")(features=ROWS)
    np.testing.assert_allclose(answer["scores"], keras.saving.load_model(tiny)(ROWS), atol=1e-6)


@pytest.mark.slow
def test_a_server_that_prefers_it_serves_it_under_the_same_names(export: Export, tiny: Path, tmp_path: Path) -> None:
    signatures = ("--signature", "predict=tensor", "--signature", "examples=tf_example")
    finished = export(tiny, tmp_path / "m", *signatures, *ALSO)
    assert finished.code == 0, finished.err
    log = tmp_path / "log"
    with run_server(tmp_path / "m", log, "--prefer_tflite_model") as server, Client(server.grpc) as client:
        expected = keras.saving.load_model(tiny)(ROWS)
        for name in ("predict", "serving_default"):
            served = client.predict("m", {"features": ROWS}, signature_name=name)
            np.testing.assert_allclose(served["scores"], expected, atol=1e-6)
    assert "XNNPACK" in log.read_text()  # LiteRT served the requests


def test_a_model_without_a_signature_of_tensors_is_refused(export: Export, tiny: Path, tmp_path: Path) -> None:
    finished = export(tiny, tmp_path / "m", "--signature", "examples=tf_example", *ALSO)
    assert (finished.code, "Add --signature NAME=tensor" in finished.err) == (2, True)


def test_a_saved_model_is_converted_too(export: Export, tiny: Path, tmp_path: Path) -> None:
    assert export(tiny, tmp_path / "first").code == 0
    finished = export(tmp_path / "first/1", tmp_path / "second", *ALSO)
    assert finished.code == 0, finished.err
    assert "LiteRT" in str(parity(read_manifest(tmp_path / "second/1"))["serving_default"]["buckets"])


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (
            ("inverting",),
            "TensorFlow Lite does not support MatrixInverse (functional_1/scores_1/MatrixInverse), or not in this form",
        ),
        (
            ("tiny", "--model-arg", "dtype=mixed_bfloat16"),
            "hidden_1/Relu). Use --compute-dtype float32",
        ),
    ],
    ids=["operation", "bfloat16"],
)
def test_what_tensorflow_lite_lacks_is_named(
    export: Export, tiny_checkpoint: Path, tmp_path: Path, builder: tuple[str, ...], message: str
) -> None:
    name, *arguments = builder
    model = ("--model", f"tests.exporter.builders:{name}", *arguments, "--allow-unused", "*")
    finished = export(tiny_checkpoint, tmp_path / "m", *model, *ALSO)
    assert (finished.code, message in finished.err) == (4, True), finished.err
    assert "loc(" not in finished.err
    assert not (tmp_path / "m").exists()


def test_a_missing_litert_says_which_extra_to_install(
    export: Export, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ai_edge_litert" else find(name))
    finished = export(tiny, tmp_path / "m", *ALSO)
    assert finished.code == 10
    assert "pip install 'tpuserve-exporter[tflite]'" in finished.err


def parity(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["parity"]["signatures"]
    return found
