"""Tests specific to TensorFlow Lite. test_executor_contract.py tests the behaviour that all executors share."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.tflite_models import convert, flex_map, half_plus_two, save, signature_def, with_metadata
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.tflite import TfliteOptions
from tpuserve_server.executors.tflite.model import TfliteExecutor, TfliteServable


@pytest.fixture(scope="module")
def half_plus_two_model() -> bytes:
    return half_plus_two()


def load(path: Path) -> TfliteServable:
    return TfliteExecutor(TfliteOptions(max_interpreters=2, num_threads=2)).load(ServableId("m", 1), VersionFiles(path))


def run(servable: TfliteServable, inputs: Tensors, *outputs: str, signature: str = "serving_default") -> Tensors:
    return servable.dispatch(signature, inputs, outputs).result()


def test_no_model_counts_as_repeatable(half_plus_two_model: bytes, tmp_path: Path) -> None:
    assert "does not examine" in load(save(tmp_path / "1", half_plus_two_model)).unrepeatable


def test_without_signature_defs_the_tensors_make_one_under_names_less_their_suffix(
    half_plus_two_model: bytes, tmp_path: Path
) -> None:
    servable = load(save(tmp_path / "1", half_plus_two_model))
    signature = servable.signatures["serving_default"]
    assert set(servable.signatures) == {"serving_default"}
    assert signature.method_name == "tensorflow/serving/predict"
    (x,) = signature.inputs.values()
    assert (x.name, x.graph_name, x.shape) == ("serving_default_x", "serving_default_x:0", (None, 1))
    (y,) = signature.outputs.values()
    assert y.graph_name == f"{y.name}:0"
    np.testing.assert_allclose(run(servable, {x.name: np.array([[2], [4]], "f")}, y.name)[y.name], [[3], [4]])


def test_of_outputs_that_differ_in_their_suffix_none_is_lost(tmp_path: Path) -> None:
    content = convert(serving_default=(lambda x: {"y": x * 2, "z": x + 1}, tf.TensorSpec([None], tf.float32, "x")))
    servable = load(save(tmp_path / "1", content))
    names = sorted(servable.signatures["serving_default"].outputs)
    assert len(names) == 2
    assert names[1] == f"{names[0]}:0"
    results = run(servable, {"serving_default_x": np.array([5], "f")}, *names)
    assert sorted(array.tolist() for array in results.values()) == [[6], [10]]


def test_signature_defs_of_the_metadata_are_served_as_they_say(half_plus_two_model: bytes, tmp_path: Path) -> None:
    plain = load(save(tmp_path / "1", half_plus_two_model)).signatures["serving_default"]
    (x,), (y,) = plain.inputs.values(), plain.outputs.values()
    content = with_metadata(
        half_plus_two_model,
        flex_map({"halve": signature_def({"number": x.graph_name}, {"result": y.graph_name}).SerializeToString()}),
    )
    servable = load(save(tmp_path / "2", content))
    assert set(servable.signatures) == {"halve", "serving_default"}
    halve = servable.signatures["halve"]
    assert halve.inputs["number"].shape == (None, 1)
    assert halve.inputs["number"].graph_name == x.graph_name
    assert run(servable, {"number": np.array([[8]], "f")}, "result", signature="halve")["result"].tolist() == [[6]]
    # The converter's own signature also exists, under the converter's names.
    assert run(servable, {"x": np.array([[8], [2]], "f")}, "y")["y"].tolist() == [[6], [3]]
    assert run(servable, {"number": np.array([[8]], "f")}, "result", signature="halve")["result"].tolist() == [[6]]


def test_a_signature_def_of_an_unknown_tensor_fails_the_load(half_plus_two_model: bytes, tmp_path: Path) -> None:
    written = flex_map({"serving_default": signature_def({"x": "nowhere:0"}, {}).SerializeToString()})
    with pytest.raises(InvalidArgument, match=r"Signature input x references an unknown tensor.*'nowhere:0'"):
        load(save(tmp_path / "1", with_metadata(half_plus_two_model, written)))


@pytest.mark.parametrize("written", [b"\x01", b"nonsense", flex_map({"serving_default": b"\x0f"})])
def test_signature_defs_that_cannot_be_read_fail_the_load(
    half_plus_two_model: bytes, tmp_path: Path, written: bytes
) -> None:
    with pytest.raises(InvalidArgument, match="Invalid SignatureDefs found in TfLite model"):
        load(save(tmp_path / "1", with_metadata(half_plus_two_model, written)))


def test_signatures_of_several_subgraphs_are_all_served(tmp_path: Path) -> None:
    content = convert(
        double=(lambda x: {"y": x * 2}, tf.TensorSpec([None, 2], tf.float32, "x")),
        text=(lambda s: {"t": tf.identity(s)}, tf.TensorSpec([None], tf.string, "s")),
    )
    servable = load(save(tmp_path / "1", content))
    assert {"double", "text", "serving_default"} == set(servable.signatures)
    doubled = run(servable, {"x": np.ones((3, 2), "f")}, "y", signature="double")["y"]
    assert doubled.tolist() == [[2, 2]] * 3
    texts = np.array([b"a\x00b", b"\xff", b""], object)
    assert run(servable, {"s": texts}, "t", signature="text")["t"].tolist() == texts.tolist()
    with pytest.raises(InvalidArgument, match="Failed to invoke TfLite interpreter"):
        run(servable, {"x": np.array([["a"]], object)}, "y", signature="double")


def test_a_model_with_a_fixed_batch_is_resized_as_upstream_does(tmp_path: Path) -> None:
    content = convert(serving_default=(lambda x: {"y": x * 2}, tf.TensorSpec([1, 2], tf.float32, "x")))
    servable = load(save(tmp_path / "1", content))
    (y,) = servable.signatures["serving_default"].outputs
    assert not servable.signatures["serving_default"].is_batchable
    assert run(servable, {"serving_default_x": np.ones((4, 2), "f")}, y)[y].tolist() == [[2, 2]] * 4


def test_after_a_shape_that_the_model_refuses_the_next_request_is_answered(tmp_path: Path) -> None:
    weights = tf.constant(np.ones((2, 3), "f"))
    content = convert(
        serving_default=(lambda x: {"y": tf.matmul(x, weights)}, tf.TensorSpec([None, 2], tf.float32, "x"))
    )
    servable = load(save(tmp_path / "1", content))
    (y,) = servable.signatures["serving_default"].outputs
    assert run(servable, {"serving_default_x": np.ones((1, 2), "f")}, y)[y].tolist() == [[2, 2, 2]]
    with pytest.raises(InvalidArgument, match=r"^Failed to allocate tensors") as caught:
        run(servable, {"serving_default_x": np.ones((1, 5), "f")}, y)
    assert "\n" not in caught.value.message
    assert run(servable, {"serving_default_x": np.ones((1, 2), "f")}, y)[y].tolist() == [[2, 2, 2]]


def test_an_operation_that_litert_does_not_have_fails_the_load_by_name(tmp_path: Path) -> None:
    module = tf.Module()
    module.serve = tf.function(
        lambda x: {"y": tf.raw_ops.Betainc(a=x, b=x, x=x)}, input_signature=[tf.TensorSpec([None], tf.float32, "x")]
    )
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures={"serving_default": module.serve})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"))
    converter.allow_custom_ops = True
    path = save(tmp_path / "1", converter.convert())
    with pytest.raises(FailedPrecondition, match=r"refuses custom operations .*: Betainc\. .*--allowed_ops=Betainc$"):
        load(path)
    allowed = TfliteExecutor(TfliteOptions(allowed_ops=("Betainc",)))
    with pytest.raises(InvalidArgument, match="Failed to allocate tensors: Encountered unresolved custom op: Betainc"):
        allowed.load(ServableId("m", 1), VersionFiles(path))


def test_with_one_interpreter_runs_follow_one_another(half_plus_two_model: bytes, tmp_path: Path) -> None:
    servable = TfliteExecutor(TfliteOptions(max_interpreters=1, num_threads=1)).load(
        ServableId("m", 1), VersionFiles(save(tmp_path / "1", half_plus_two_model))
    )
    (y,) = servable.signatures["serving_default"].outputs
    answers: list[float] = []

    def ask(number: int) -> None:
        x = np.array([[number]], "f")
        answers.extend(run(servable, {"serving_default_x": x}, y)[y].item() - number / 2 for _ in range(50))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [2.0] * 150
    servable.close()
