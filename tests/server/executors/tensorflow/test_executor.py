import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import save_function, save_half_plus_two, save_mlp
from tests.support.v1_models import save_unassigned
from tpuserve_server.core.batching.arrays import BatchBuffers, empty_batch
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor, TensorFlowServable
from tpuserve_server.executors.tensorflow.session_config import cpu_has_bfloat16
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements


def load(path: Path, *, allows_bfloat16: bool = False) -> TensorFlowServable:
    return TensorFlowExecutor(TensorFlowOptions()).load(
        ServableId("m", 1), VersionFiles(path, allows_bfloat16=allows_bfloat16)
    )


def run(servable: TensorFlowServable, inputs: Tensors, *outputs: str) -> Tensors:
    return servable.dispatch("serving_default", inputs, outputs).result()


@pytest.fixture(scope="module")
def half_plus_two(tmp_path_factory: pytest.TempPathFactory) -> TensorFlowServable:
    return load(save_half_plus_two(tmp_path_factory.mktemp("half") / "1"))


def test_signatures_are_read_as_metadata_will_show_them(half_plus_two: TensorFlowServable) -> None:
    signature = half_plus_two.signatures["serving_default"]
    assert set(half_plus_two.signatures) == {"serving_default"}
    assert signature.inputs["x"].shape == (None, 1)
    assert signature.inputs["x"].graph_name == "x:0"
    assert signature.method_name == "tensorflow/serving/predict"
    assert signature.is_batchable


def test_it_accepts_the_feeds_that_tensorflow_serving_accepts(half_plus_two: TensorFlowServable) -> None:
    for x in (np.array([[1], [2]], np.float32), np.array([1, 2, 5], np.float32), np.float32(3).reshape(())):
        np.testing.assert_allclose(run(half_plus_two, {"x": np.asarray(x)}, "y")["y"], x / 2 + 2)


def test_a_graph_is_built_for_each_set_of_outputs(tmp_path: Path) -> None:
    path = save_function(
        tmp_path / "1", lambda x: {"double": 2 * x, "half": x / 2}, tf.TensorSpec([None], tf.float32, "x")
    )
    metrics = DeviceMeasurements()
    servable = TensorFlowExecutor(TensorFlowOptions(), metrics).load(ServableId("m", 1), VersionFiles(path))
    x = np.ones(1, np.float32)
    for outputs, built in ((("double",), 1), (("double",), 1), (("double", "half"), 2)):
        run(servable, {"x": x}, *outputs)
        assert metrics.graph_builds().number == built
    assert metrics.graph_builds().duration_s > 0
    assert metrics.compilations().number == 0


def test_a_read_only_view_is_fine(half_plus_two: TensorFlowServable) -> None:
    x = np.frombuffer(np.array([[4]], np.float32).tobytes(), np.float32).reshape(1, 1)
    assert run(half_plus_two, {"x": x}, "y")["y"].tolist() == [[4]]


def test_several_threads_may_ask_several_servables(half_plus_two: TensorFlowServable, tmp_path: Path) -> None:
    other = load(save_mlp(tmp_path / "1"))
    answers: list[float] = []
    thread = threading.Thread(
        target=lambda: answers.append(float(run(other, {"x": np.zeros((1, 64), "f")}, "y")["y"].sum()))
    )
    thread.start()
    run(half_plus_two, {"x": np.zeros((1, 1), np.float32)}, "y")
    thread.join()
    assert answers == [0]
    other.close()


def test_every_dtype_goes_in_and_comes_out(tmp_path: Path) -> None:
    dtypes = [
        tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64,
        tf.uint8, tf.uint16, tf.uint32, tf.uint64, tf.bool, tf.complex64, tf.complex128, tf.string,
    ]  # fmt: skip

    def identity(*arrays: tf.Tensor) -> dict[str, tf.Tensor]:
        return {f"out_{array.dtype.name}": tf.identity(array) for array in arrays}

    specs = [tf.TensorSpec([None], dtype, f"in_{dtype.name}") for dtype in dtypes]
    servable = load(save_function(tmp_path / "1", identity, *specs))
    inputs = {
        f"in_{dtype.name}": np.array([b"a", b"\x00\xff"], object)
        if dtype == tf.string
        else np.array([0, 1], dtype.as_numpy_dtype)
        for dtype in dtypes
    }
    for dtype in dtypes:
        assert (
            servable.signatures["serving_default"].inputs[f"in_{dtype.name}"].dtype == inputs[f"in_{dtype.name}"].dtype
        )
    outputs = run(servable, inputs, *(f"out_{dtype.name}" for dtype in dtypes))
    for dtype in dtypes:
        assert outputs[f"out_{dtype.name}"].dtype == inputs[f"in_{dtype.name}"].dtype
        assert outputs[f"out_{dtype.name}"].tolist() == inputs[f"in_{dtype.name}"].tolist()
    servable.close()


def test_what_the_model_refuses_is_the_callers_fault_in_one_line(tmp_path: Path) -> None:
    def gather(index: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.gather(tf.constant([1.0, 2.0, 3.0]), index)}

    servable = load(save_function(tmp_path / "1", gather, tf.TensorSpec([None], tf.int32, "index")))
    assert run(servable, {"index": np.array([2], np.int32)}, "y")["y"].tolist() == [3]
    with pytest.raises(InvalidArgument, match=r"indices\[0\] = 7 is not in \[0, 3\)") as caught:
        run(servable, {"index": np.array([7], np.int32)}, "y")
    assert "\n" not in caught.value.message
    servable.close()


def test_a_refusal_that_quotes_bytes_is_the_callers_fault_too(tmp_path: Path) -> None:
    def parse(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]}

    servable = load(save_function(tmp_path / "1", parse, tf.TensorSpec([None], tf.string, "inputs")))
    with pytest.raises(InvalidArgument, match="Could not parse example input, value: '\ufffd\ufffd'"):
        run(servable, {"inputs": np.array([b"\xff\xff"], object)}, "y")


def test_callables_of_many_output_sets_do_not_pile_up(tmp_path: Path) -> None:
    def many(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {f"y{index}": x + float(index) for index in range(70)}

    servable = load(save_function(tmp_path / "1", many, tf.TensorSpec([None], tf.float32, "x")))
    for index in [*range(70), 0]:
        outputs = run(servable, {"x": np.zeros(1, np.float32)}, f"y{index}")
        assert outputs[f"y{index}"].tolist() == [index]
    servable.close()


@pytest.mark.parametrize("content", [None, b"not a protocol buffer"])
def test_what_is_no_saved_model_fails_without_naming_a_path(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(ServingError, match="TensorFlow cannot load the SavedModel") as caught:
        load(tmp_path)
    assert str(tmp_path) not in caught.value.message


def test_missing_weights_fail_without_naming_a_path(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    for file in (path / "variables").iterdir():
        file.unlink()
    with pytest.raises(FailedPrecondition) as caught:
        load(path)
    assert caught.value.message == (
        "signature 'serving_default' reads the variable 'Variable', but it has no variables/variables.index. Copy or "
        "export the version again. The server's flag --lenient_loads serves such versions, as TensorFlow Serving does"
    )


def test_a_variable_without_value_fails_the_load_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_unassigned(tmp_path / "1")
    missing = (
        "signature 'serving_default' reads the variable 'bias', which neither the checkpoint nor an initialiser "
        "assigns. tpuserve export repairs it if Python finds the values"
    )
    with pytest.raises(FailedPrecondition) as caught:
        load(path)
    flag = "The server's flag --lenient_loads serves such versions, as TensorFlow Serving does"
    assert caught.value.message == f"{missing}. {flag}"
    lenient = TensorFlowExecutor(TensorFlowOptions(lenient_loads=True))
    servable = lenient.load(ServableId("m", 1), VersionFiles(path))
    assert f"{{name: m version: 1}} is served, but {missing}" in caplog.text
    with pytest.raises(FailedPrecondition, match="Could not find variable bias"):
        run(servable, {"x": np.ones((1, 1), np.float32)}, "y")
    servable.close()


def test_a_signature_without_value_beside_a_default_that_answers_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    servable = load(save_unassigned(tmp_path / "1", "debug", "serving_default"))
    assert run(servable, {"x": np.ones((1, 1), np.float32)}, "y")["y"].shape == (1, 1)
    assert "{name: m version: 1} is served, but signature 'debug' reads the variable 'bias'" in caplog.text
    servable.close()


def test_a_default_signature_without_value_fails_the_load(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="signature 'serving_default' reads the variable 'bias'"):
        load(save_unassigned(tmp_path / "1", "serving_default", "debug"))


def test_bfloat16_kernels_only_where_allowed_and_there(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert not cpu_has_bfloat16(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu sse avx512f avx512_bf16\n")
    assert cpu_has_bfloat16(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu sse avx512f\n")
    assert not cpu_has_bfloat16(cpuinfo)
    path = save_mlp(tmp_path / "1")
    plain = load(path, allows_bfloat16=False)
    assert "bfloat16" not in plain.device
    if cpu_has_bfloat16(Path("/proc/cpuinfo")):
        fast = load(path, allows_bfloat16=True)
        assert "bfloat16 kernels" in fast.device
        x = np.random.default_rng(0).random((8, 64), np.float32)
        exact, rounded = run(plain, {"x": x}, "y")["y"], run(fast, {"x": x}, "y")["y"]
        assert rounded.dtype == np.float32
        np.testing.assert_allclose(rounded, exact, rtol=0.05, atol=0.3)
        assert not np.array_equal(rounded, exact)
        fast.close()
    plain.close()


def test_bfloat16_arrays_are_ml_dtypes(tmp_path: Path) -> None:
    servable = load(save_function(tmp_path / "1", lambda x: {"y": x + x}, tf.TensorSpec([None], tf.bfloat16, "x")))
    assert run(servable, {"x": np.array([1.5], ml_dtypes.bfloat16)}, "y")["y"].dtype == ml_dtypes.bfloat16
    servable.close()


def test_aligned_inputs_are_read_in_place(tmp_path: Path) -> None:
    servable = load(save_function(tmp_path / "1", lambda x: {"y": x}, tf.TensorSpec([None, 3], tf.float32, "x")))
    batch = empty_batch({"x": np.zeros((1, 3), np.float32)}, {"x": (3,)}, 100)
    batch["x"][...] = 2
    # The output of this model is its input, wherever TensorFlow has it.
    output = run(servable, batch, "y")["y"]
    assert np.shares_memory(output, batch["x"])
    servable.close()


def test_a_variable_keeps_an_input_of_a_buffer_that_is_used_again(tmp_path: Path) -> None:
    module = tf.Module()
    module.last = tf.Variable(tf.zeros([0, 3]), shape=[None, 3])

    def swap(x: tf.Tensor) -> dict[str, tf.Tensor]:
        before = tf.identity(module.last.read_value())
        with tf.control_dependencies([before]):
            module.last.assign(x)
        return {"y": before}

    module.serve = tf.function(swap, input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    servable, buffers = load(tmp_path / "1"), BatchBuffers(1 << 20)
    seen = []
    for value in range(1, 5):
        batch = buffers.get("serving_default", {"x": np.zeros((1, 3), np.float32)}, {"x": (3,)}, 64)
        batch["x"][...] = value
        seen.append(run(servable, batch, "y")["y"][:1].tolist())
        del batch
    assert seen == [[], [[1.0] * 3], [[2.0] * 3], [[3.0] * 3]]
    servable.close()
