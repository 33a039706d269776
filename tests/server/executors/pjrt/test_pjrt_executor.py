"""Tests specific to the PJRT executor: programs by size, dtypes, host parts, refusals.

test_executor_contract.py has the tests that all executors share.
"""

import gc
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tests.support.device_programs import (
    FOLDER,
    Part,
    double_and_add,
    read_manifest,
    write_device_manifest,
    write_programs,
)
from tests.support.fake_device import FakeClock
from tests.support.saved_models import save_function
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, InvalidArgument, ServingError
from tpuserve_server.core.terms.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

ID = ServableId("m", 1)


def no_host() -> Executor:
    raise AssertionError("nothing here needs TensorFlow")


def load(path: Path, measured: DeviceMeasurements | None = None, clock: FakeClock | None = None) -> Servable:
    executor = PjrtExecutor(PjrtOptions("cpu"), no_host, measured or DeviceMeasurements(), clock or FakeClock())
    return executor.load(ID, VersionFiles(path))


def load_with_tensorflow(path: Path) -> Servable:
    tensorflow = TensorFlowExecutor(TensorFlowOptions())
    executor = PjrtExecutor(PjrtOptions("cpu"), lambda: tensorflow, DeviceMeasurements(), FakeClock())
    return executor.load(ID, VersionFiles(path))


def run(servable: Servable, *names: str, **inputs: Any) -> Tensors:  # noqa: ANN401 - what numpy makes arrays of
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    return servable.dispatch("serving_default", arrays, names).result()


def change(path: Path, part: Mapping[str, Any] | None = None, **device: object) -> None:
    manifest = read_manifest(path)
    manifest["device"].update(device)
    manifest["device"]["parts"]["device"].update(part or {})
    write_device_manifest(path, manifest["signatures"], manifest["device"])


def refusal(path: Path) -> str:
    with pytest.raises(ServingError) as caught:
        load(path)
    assert str(path) not in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


def count_rows_of(part: Part) -> Part:
    """Return the part with an additional output, the number of rows that the program ran."""
    return Part(
        lambda x, *weights: (*part.function(x, *weights), jnp.full((x.shape[0],), x.shape[0], jnp.int32)),
        part.inputs,
        {**part.outputs, "ran": ("int32", (None,))},
        part.weights,
    )


@pytest.mark.parametrize(("rows", "ran"), [(0, 2), (1, 2), (2, 2), (3, 8), (8, 8), (9, 8), (17, 8)])
def test_rows_run_in_the_next_larger_program_or_in_pieces_of_the_largest(tmp_path: Path, rows: int, ran: int) -> None:
    servable = load(write_programs(tmp_path, count_rows_of(double_and_add()), batch_sizes=(2, 8)))
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    outputs = run(servable, "double", "ran", x=x)
    np.testing.assert_array_equal(outputs["double"], x * 2)
    assert outputs["ran"].tolist() == [ran] * rows
    servable.close()


def test_pieces_of_a_large_request_are_on_the_device_two_at_a_time(tmp_path: Path) -> None:
    servable = load(write_programs(tmp_path, double_and_add(), batch_sizes=(2,)))

    def count_arrays(pieces: int) -> int:
        x = np.arange(pieces * 4, dtype=np.float32).reshape(pieces * 2, 2)
        flight = servable.dispatch("serving_default", {"x": x}, ("double",))
        on_device = len(jax.live_arrays())
        np.testing.assert_array_equal(flight.result()["double"], x * 2)
        return on_device

    gc.collect()  # garbage of other tests
    assert count_arrays(1) < count_arrays(2) == count_arrays(50)
    servable.close()


def test_inputs_of_any_layout_reach_the_programs(tmp_path: Path) -> None:
    rows = (None,)
    tensors = {
        "x": ("float32", (None, 3)),
        "on": ("bool", rows),
        "byte": ("uint8", (None, 2)),
        "small": ("bfloat16", rows),
    }
    part = Part(
        lambda x, on, byte, small: (x + 0, on ^ True, byte + 1, small * 2),
        tensors,
        tensors,
    )
    servable = load(write_programs(tmp_path, part, batch_sizes=(1, 4)))
    x = np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::3].T  # columns, not contiguous: 3 rows of 3
    given = {
        "x": x, "on": np.array([True, True, False, True, False, False])[::2],
        "byte": np.asfortranarray(np.array([[255, 0], [1, 2], [3, 4]], np.uint8)),
        "small": np.array([3, 2, 1], ml_dtypes.bfloat16)[::-1],
    }  # fmt: skip
    outputs = run(servable, "x", "on", "byte", "small", **given)
    np.testing.assert_array_equal(outputs["x"], x)
    assert outputs["on"].tolist() == [False, True, True]
    assert outputs["byte"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert outputs["small"].astype(float).tolist() == [2, 4, 6]
    servable.close()


def test_an_output_that_is_an_input_does_not_change_when_the_input_does(tmp_path: Path) -> None:
    part = Part(lambda x: (x,), {"x": ("float32", (None, 16))}, {"same": ("float32", (None, 16))})
    servable = load(write_programs(tmp_path, part, batch_sizes=(4,)))
    # Align the array so that a CPU client uses it without a copy. The batcher reuses such a buffer for several batches.
    content = np.zeros(4 * 16 * 4 + 64, np.uint8)
    start = -content.ctypes.data % 64
    x = content[start : start + 4 * 16 * 4].view(np.float32).reshape(4, 16)
    x[:] = 1
    same = run(servable, "same", x=x)["same"]
    x[:] = 2
    assert np.unique(same).tolist() == [1]
    servable.close()


def test_a_part_that_takes_no_inputs_runs(tmp_path: Path) -> None:
    part = Part(lambda table: (table * 2,), {}, {"twice": ("float32", (2,))}, {"table": np.array([1, 2], np.float32)})
    path = write_programs(tmp_path, part, batch_sizes=(1,), rows_independent=False)
    (program,) = read_manifest(path)["device"]["parts"]["device"]["programs"]
    change(path, {"programs": [{**program, "batch_size": None}]})
    servable = load(path)
    assert run(servable, "twice")["twice"].tolist() == [2, 4]
    servable.close()


def test_rows_that_depend_on_others_are_never_padded(tmp_path: Path) -> None:
    total = Part(
        lambda x: (jnp.broadcast_to(x.sum(), x.shape),), {"x": ("float32", (None,))}, {"y": ("float32", (None,))}
    )
    servable = load(write_programs(tmp_path, total, batch_sizes=(2, 4), rows_independent=False))
    assert run(servable, "y", x=np.ones(4, np.float32))["y"].tolist() == [4] * 4
    for rows in (1, 3, 8):
        with pytest.raises(
            InvalidArgument, match=f"for 2, 4 rows only, because the rows depend on each other; got {rows}"
        ):
            run(servable, "y", x=np.ones(rows, np.float32))
    servable.close()


def test_shorter_sequences_are_padded_with_their_value_and_outputs_cut(tmp_path: Path) -> None:
    part = Part(
        lambda ids, mask: (ids * 10 + mask, jnp.sum(jnp.where(ids == 7, 1, 0), axis=1)),
        {"ids": ("int64", (None, None)), "mask": ("int64", (None, None))},
        {"tokens": ("int64", (None, None)), "padding": ("int64", (None,))},
    )
    tensor = {"dtype": "int64", "shape": [None, None]}
    signature = {"inputs": {"ids": {**tensor, "pad_value": 7}, "mask": tensor}}
    path = write_programs(tmp_path, part, batch_sizes=(2,), lengths=(4, 8), signature=signature)
    servable = load(path)
    ids = np.array([[2**40, 1, 2]])
    outputs = run(servable, "tokens", "padding", ids=ids, mask=np.ones_like(ids))
    assert outputs["tokens"].tolist() == (ids * 10 + 1).tolist()
    assert outputs["tokens"].dtype == np.int64
    assert outputs["padding"].tolist() == [1]
    with pytest.raises(InvalidArgument, match="accept lengths up to 8; got 9"):
        run(servable, "tokens", ids=np.ones((1, 9), int), mask=np.ones((1, 9), int))
    with pytest.raises(InvalidArgument, match="require equal lengths in all inputs; got 'ids' 3, 'mask' 4"):
        run(servable, "tokens", ids=ids, mask=np.ones((1, 4), int))
    servable.close()


def test_arrays_are_cast_to_what_the_program_takes_and_the_signature_gives(tmp_path: Path) -> None:
    part = Part(
        lambda ids, scale: (ids * 2, scale * 2),
        {"ids": ("int32", (None,)), "scale": ("bfloat16", (None,))},
        {"ids": ("int32", (None,)), "scale": ("bfloat16", (None,))},
    )
    wide = {"ids": {"dtype": "int64", "shape": [None]}, "scale": {"dtype": "float32", "shape": [None]}}
    servable = load(write_programs(tmp_path, part, signature={"inputs": wide, "outputs": wide}))
    outputs = run(servable, "ids", "scale", ids=np.array([3]), scale=np.array([1.5], np.float32))
    assert outputs["ids"].dtype == np.int64
    assert outputs["ids"].tolist() == [6]
    assert outputs["scale"].dtype == np.float32
    assert outputs["scale"].tolist() == [3.0]
    with pytest.raises(InvalidArgument, match="'ids' has values outside the range of int32"):
        run(servable, "ids", ids=np.array([2**31]), scale=np.array([1.5], np.float32))
    servable.close()


def test_shared_weights_of_every_kind_reach_the_programs(tmp_path: Path) -> None:
    weights = {"half": np.array([0.5], ml_dtypes.bfloat16), "wide": np.array(2.0**60), "whole": np.array(2**40)}
    part = Part(
        lambda x, half, wide, whole: (x + half.astype(x.dtype), wide + 1 + jnp.zeros_like(x), whole + jnp.int64(x)),
        {"x": ("float64", (None,))},
        {"a": ("float64", (None,)), "b": ("float64", (None,)), "c": ("int64", (None,))},
        weights,
    )
    servable = load(write_programs(tmp_path, part))
    outputs = run(servable, "a", "b", "c", x=np.array([1.0]))
    assert [outputs[name].tolist() for name in "abc"] == [[1.5], [2.0**60 + 1], [2**40 + 1]]
    servable.close()


def test_weights_stay_what_they_were_when_their_file_is_written_over(tmp_path: Path) -> None:
    servable = load(write_programs(tmp_path, double_and_add()))
    file = tmp_path / FOLDER / "weights.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert run(servable, "double", x=np.ones((1, 2), np.float32))["double"].tolist() == [[2, 2]]
    servable.close()


def test_runs_in_flight_overlap_and_end_in_order(tmp_path: Path) -> None:
    path = write_programs(tmp_path, double_and_add())
    servable = load(path)
    assert servable.max_in_flight == 2
    inputs = [{"x": np.full((2, 2), number, np.float32)} for number in range(2)]
    flights = [servable.dispatch("serving_default", one, ("double",)) for one in inputs]
    assert [flight.result()["double"][0, 0] for flight in flights] == [0, 2]
    servable.close()


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (lambda shape: jax.random.uniform(jax.random.key(0), shape), ""),
        (
            lambda shape: jax.lax.rng_uniform(np.float32(0), np.float32(1), shape),
            "the device program assets.extra/tpuserve/programs/device/b1.jaxexport draws random numbers",
        ),
    ],
)
def test_programs_that_draw_random_numbers_are_not_repeatable(
    tmp_path: Path, draw: Callable[[tuple[int, ...]], jax.Array], reason: str
) -> None:
    tensors: dict[str, tuple[str, tuple[int | None, ...]]] = {"x": ("float32", (None, 2))}
    path = write_programs(tmp_path, Part(lambda x: (x + draw(x.shape),), tensors, {"y": tensors["x"]}))
    executor = PjrtExecutor(PjrtOptions("cpu"), no_host, DeviceMeasurements(), FakeClock())
    servable = executor.load(ID, VersionFiles(path, is_cached=True))
    assert servable.unrepeatable == reason
    servable.close()


def test_a_saved_model_that_is_not_repeatable_spoils_the_programs_beside_it(tmp_path: Path) -> None:
    save_function(tmp_path, lambda x: {"y": x + tf.random.uniform([2])}, tf.TensorSpec([None, 2], tf.float32, "x"))
    write_programs(tmp_path, double_and_add())
    manifest = read_manifest(tmp_path)
    tensor = {"dtype": "float32", "shape": [None, 2]}
    signatures = {
        "numbers": manifest["signatures"]["serving_default"],
        "serving_default": {"inputs": {"x": tensor}, "outputs": {"y": tensor}},
    }
    device = {**manifest["device"], "signatures": {"numbers": manifest["device"]["signatures"]["serving_default"]}}
    write_device_manifest(tmp_path, signatures, device)
    saved_model = TensorFlowExecutor(TensorFlowOptions())
    loaded = PjrtExecutor(PjrtOptions("cpu"), lambda: saved_model, DeviceMeasurements(), FakeClock()).load(
        ID, VersionFiles(tmp_path, is_cached=True)
    )
    assert "has the operation RandomUniform" in loaded.unrepeatable
    loaded.close()


def test_signatures_without_a_program_are_answered_by_the_saved_model(tmp_path: Path) -> None:
    save_function(tmp_path, lambda text: {"said": text + "!"}, tf.TensorSpec([None], tf.string, "text"))
    write_programs(tmp_path, double_and_add())
    manifest = read_manifest(tmp_path)
    strings = {"dtype": "string", "shape": [None]}
    signatures = {
        "numbers": manifest["signatures"]["serving_default"],
        "serving_default": {"inputs": {"text": strings}, "outputs": {"said": {**strings, "shape": None}}},
    }
    mapped = {"numbers": manifest["device"]["signatures"]["serving_default"]}
    write_device_manifest(tmp_path, signatures, {**manifest["device"], "signatures": mapped})
    servable = load_with_tensorflow(tmp_path)
    assert run(servable, "said", text=np.array([b"a"], object))["said"].tolist() == [b"a!"]
    numbers = servable.dispatch("numbers", {"x": np.ones((1, 2), np.float32)}, ("double",)).result()
    assert numbers["double"].tolist() == [[2, 2]]
    assert re.match(r"CPU \(PJRT, jax .*\); serving_default on CPU \(TensorFlow", servable.device)
    servable.close()


class TestHostPart:
    """Tests for host parts, which TensorFlow runs on the CPU."""

    @pytest.fixture
    def version(self, tmp_path: Path) -> Path:
        write_programs(tmp_path, double_and_add())
        module = tf.Module()
        text = tf.TensorSpec([None], tf.string, "text")
        module.before = tf.function(
            lambda text: {"x": tf.strings.to_number(tf.stack([text, text], axis=1))}, input_signature=[text]
        )
        module.after = tf.function(
            lambda double, input_text: {"said": tf.strings.join([input_text, "!"])},
            input_signature=[tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.string)],
        )
        tf.saved_model.save(
            module,
            str(tmp_path / FOLDER / "host"),
            signatures={"text/before": module.before, "text/after": module.after},
        )
        manifest = read_manifest(tmp_path)
        strings = {"text": {"dtype": "string", "shape": [None]}}
        served = {"rows_independent": True, "batch_sizes": [1, 2, 4], "inputs": strings}
        manifest["signatures"]["text"] = {**served, "outputs": {"said": {"dtype": "string", "shape": [None]}}}
        manifest["signatures"]["raw"] = {**served, "outputs": {"double": {"dtype": "float32", "shape": [None, 2]}}}
        host = {"model": str(FOLDER / "host"), "before": "text/before"}
        manifest["device"]["signatures"]["text"] = {"part": "device", "host": {**host, "after": "text/after"}}
        manifest["device"]["signatures"]["raw"] = {
            "part": "device", "host": {**host, "after": None}, "outputs": {"double": "double"}
        }  # fmt: skip
        write_device_manifest(tmp_path, manifest["signatures"], manifest["device"])
        return tmp_path

    def test_strings_are_read_before_the_device_and_written_after_it(self, version: Path) -> None:
        servable = load_with_tensorflow(version)
        text = np.array([b"1", b"2", b"3"], object)
        assert servable.signatures["text"].inputs["text"].dtype == object
        made = servable.dispatch("raw", {"text": text}, ("double",)).result()
        assert made["double"].tolist() == [[2, 2], [4, 4], [6, 6]]
        said = servable.dispatch("text", {"text": text}, ("said",)).result()
        assert said["said"].tolist() == [b"1!", b"2!", b"3!"]
        with pytest.raises(InvalidArgument, match="StringToNumberOp could not"):
            servable.dispatch("raw", {"text": np.array([b"one"], object)}, ("double",))
        servable.close()

    def test_rows_that_depend_on_others_on_the_host_alone_are_padded_for_the_device(self, version: Path) -> None:
        manifest = read_manifest(version)
        manifest["signatures"]["raw"]["rows_independent"] = False
        write_device_manifest(version, manifest["signatures"], manifest["device"])
        text = {"text": np.array([b"1", b"2", b"3"], object)}
        servable = load_with_tensorflow(version)
        assert servable.dispatch("raw", text, ("double",)).result()["double"].tolist() == [[2, 2], [4, 4], [6, 6]]
        servable.close()
        # The part itself no longer has a signature with independent rows.
        manifest["signatures"]["serving_default"]["rows_independent"] = False
        write_device_manifest(version, manifest["signatures"], manifest["device"])
        servable = load_with_tensorflow(version)
        with pytest.raises(
            InvalidArgument, match="for 1, 2, 4 rows only, because the rows depend on each other; got 3"
        ):
            servable.dispatch("raw", text, ("double",))
        servable.close()

    def test_host_part_that_is_not_there_is_refused(self, version: Path) -> None:
        manifest = read_manifest(version)
        manifest["device"]["signatures"]["raw"]["host"]["before"] = "raw/before"
        write_device_manifest(version, manifest["signatures"], manifest["device"])
        with pytest.raises(
            FailedPrecondition, match=r"^'raw/before' in .* does not match the host part of signature 'raw'"
        ):
            load_with_tensorflow(version)


class TestMeasurements:
    """Tests for a device's measurements."""

    def test_busy_time_is_that_of_runs_in_flight_counted_once(self, tmp_path: Path) -> None:
        measured, clock = DeviceMeasurements(), FakeClock()
        servable = load(write_programs(tmp_path, double_and_add()), measured, clock)
        (gauge,) = measured.gauges()
        assert gauge.name == "cpu:0"
        x = np.ones((1, 2), np.float32)
        first = servable.dispatch("serving_default", {"x": x}, ("double",))
        clock.advance(1)
        second = servable.dispatch("serving_default", {"x": x}, ("double",))
        clock.advance(1)
        assert gauge.busy_s() == 2
        first.result()
        second.result()
        clock.advance(5)
        with pytest.raises(InvalidArgument):
            run(servable, "double", x=np.ones((1, 3), np.float32))
        assert gauge.busy_s() == 2
        servable.close()

    def test_device_and_compile_time_of_a_version_are_told(self, tmp_path: Path) -> None:
        measured = DeviceMeasurements()
        load(write_programs(tmp_path, double_and_add()), measured).close()
        assert measured.choices()[ID] == ("cpu", "")
        assert measured.compile_s().keys() == {ID}
        assert measured.compilations() == measured.graph_builds()
        assert measured.compilations().number > 0
        measured.forget([ID])
        assert not measured.choices()
        assert not measured.compile_s()


class TestRefusals:
    """Tests that each refusal states the fault and the remedy on one line without a path."""

    @pytest.fixture
    def version(self, tmp_path: Path) -> Path:
        return write_programs(tmp_path, double_and_add(), batch_sizes=(2,))

    def test_without_programs(self, tmp_path: Path) -> None:
        assert "no device programs" in refusal(tmp_path)

    @pytest.mark.parametrize("kept", [0, 100, -40])
    def test_damaged_program_names_both_versions(self, version: Path, kept: int) -> None:
        file = version / FOLDER / "programs/device/b2.jaxexport"
        file.write_bytes(file.read_bytes()[:kept])
        change(version, lowered_with={"jax": "0.9.9"})
        message = refusal(version)
        assert "b2.jaxexport is damaged" in message
        assert "0.9.9" in message
        assert jax.__version__ in message

    @pytest.mark.parametrize(("convention", "advice"), [(99, "install a newer jax"), (3, "install an older jax")])
    def test_another_calling_convention_names_both_versions(self, version: Path, convention: int, advice: str) -> None:
        change(version, calling_convention_version=convention, lowered_with={"jax": "1.2.3"})
        message = refusal(version)
        assert f"lowered with jax 1.2.3 (calling convention {convention})" in message
        assert f"this server's jax {jax.__version__}" in message
        assert advice in message

    def test_program_that_is_not_what_the_manifest_says(self, version: Path) -> None:
        change(version, {"weights": ["two"]})
        assert "takes 3 arrays and returns 2; the manifest lists 1 input and 1 weight, and 2 outputs" in refusal(
            version
        )

    def test_nothing_of_a_refused_version_stays_on_the_device(self, version: Path) -> None:
        (version / FOLDER / "programs/device/b2.jaxexport").write_bytes(b"")
        before = {id(array) for array in jax.live_arrays()}
        refusal(version)
        assert {id(array) for array in jax.live_arrays()} <= before

    def test_program_with_an_operation_of_a_later_jax_names_both_versions(self, version: Path) -> None:
        file = version / FOLDER / "programs/device/b2.jaxexport"
        content = file.read_bytes()
        assert b"multiply_v1" in content
        file.write_bytes(content.replace(b"multiply_v1", b"multiply_v9"))
        change(version, lowered_with={"jax": "0.99.0"})
        # This error type lets `--device=auto` fall back.
        with pytest.raises(FailedPrecondition, match=r"b2\.jaxexport is damaged, or jax .* with jax 0\.99\.0\. Exp"):
            load(version)

    def test_missing_weight(self, version: Path) -> None:
        change(version, {"weights": ["two", "three"]})
        assert refusal(version).endswith("weights.safetensors lacks weight 'three'")

    def test_weights_cut_short(self, version: Path) -> None:
        file = version / FOLDER / "weights.safetensors"
        file.write_bytes(file.read_bytes()[:-4])
        with pytest.raises(DataLoss):
            load(version)

    def test_weight_of_another_shape(self, version: Path) -> None:
        manifest = json.loads((version / FOLDER / "manifest.json").read_text())
        weights = manifest["device"]["parts"]["device"]["weights"]
        change(version, {"weights": weights[::-1]})
        assert re.match(r"weight 'one' is float32 \[2\], but .*/b2.jaxexport takes float32 \[\]$", refusal(version))

    def test_later_format(self, version: Path) -> None:
        change(version, format_version=2)
        assert "format_version 2; this server supports up to 1. Upgrade tpuserve-server" in refusal(version)

    def test_signature_that_nobody_has(self, version: Path) -> None:
        change(version, signatures={})
        save_function(version, lambda x: {"y": x}, tf.TensorSpec([None, 2], tf.float32, "x"))
        manifest = read_manifest(version)
        manifest["signatures"]["other"] = manifest["signatures"].pop("serving_default")
        write_device_manifest(version, manifest["signatures"], manifest["device"])
        with pytest.raises(
            FailedPrecondition, match=r"^signature 'other' has no device program, and the SavedModel lacks it"
        ):
            load_with_tensorflow(version)

    def test_part_that_is_not_fed(self, version: Path) -> None:
        change(version, signatures={"serving_default": {"part": "device", "inputs": {}, "outputs": {}}})
        message = "inputs of 'serving_default' are ['x'], those of its part are ['x'], and the mapping is {}"
        assert message in refusal(version)

    def test_file_beyond_the_version(self, version: Path) -> None:
        change(version, weights="../elsewhere.safetensors")
        assert "is outside the version directory" in refusal(version)

    def test_file_without_a_name(self, version: Path) -> None:
        change(version, weights="a\0b")
        assert refusal(version) == r"'a\x00b' in the manifest cannot be checked: ValueError"

    @pytest.mark.parametrize("dtype", ["float33", "(1,", ",", "9999999999f4", "f4,i4", "object", "a" * 99])
    def test_dtype_that_no_tensor_has(self, version: Path, dtype: str) -> None:
        manifest = read_manifest(version)
        manifest["signatures"]["serving_default"]["inputs"]["x"]["dtype"] = dtype
        write_device_manifest(version, manifest["signatures"], manifest["device"])
        assert refusal(version).endswith(f"has an unknown dtype: {dtype[:64]}")

    def test_host_part_beyond_the_version(self, version: Path) -> None:
        entry = {"part": "device", "host": {"model": "../elsewhere", "before": "a", "after": "b"}}
        change(version, signatures={"serving_default": entry})
        assert "../elsewhere in the manifest is outside the version directory" in refusal(version)

    def test_device_that_is_not_there(self) -> None:
        absent = r"PJRT found only cpu, and no client for a GPU is installed: pip install 'tpuserve-server\[cuda\]'$"
        with pytest.raises(FailedPrecondition, match=absent):
            PjrtExecutor(PjrtOptions("gpu"), no_host, DeviceMeasurements(), FakeClock())

    def test_mesh_of_more_devices_than_a_cpu_is_says_how_to_have_them(self) -> None:
        options = PjrtOptions("cpu", MeshShape(data=64))
        with pytest.raises(
            FailedPrecondition, match=r"requires 64 devices; .*platform_device_count=64 creates that many CPU devices"
        ):
            PjrtExecutor(options, no_host, DeviceMeasurements(), FakeClock())
