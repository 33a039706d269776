"""Tests for recorded responses of warm-up requests, which `tpuserve check` compares with a version's responses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.command.checking import command
from tpuserve_exporter.command.exporting import command as export_command
from tpuserve_exporter.version import warmup
from tpuserve_exporter.version.warmup import hash_requests
from tpuserve_exporter.version.warmup_records import WARMUP_FILE
from tpuserve_loadtests.requests.recording import read_golden_version

pytestmark = [pytest.mark.xdist_group(__name__)]
TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "1,2")


@pytest.fixture(scope="module")
def exported(tensorflow: None, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("exported") / "tiny"
    done = CliRunner().invoke(export_command, [str(tiny_checkpoint), str(base), *TINY], standalone_mode=False)
    assert done.return_value == 0, done.output
    return base / "1"


@pytest.fixture
def version(exported: Path, tmp_path: Path) -> Path:
    """Copy a version, for tests that change it."""
    return shutil.copytree(exported, tmp_path / "tiny/1")


def logs_of(version: Path) -> list[Any]:
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    records = tf.data.TFRecordDataset(str(version / WARMUP_FILE)).as_numpy_iterator()
    return [PredictionLog.FromString(record) for record in records]


def rewrite(version: Path, logs: list[Any]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(version / WARMUP_FILE)) as writer:
        for log in logs:
            writer.write(log.SerializeToString())


def check(*arguments: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(command, [*map(str, arguments), "--json"], standalone_mode=False)
    return done.return_value, json.loads(done.stdout)


def precise(version: Path, dtype: str, tolerance: float) -> None:
    """Record another precision in a version's manifest."""
    manifest = read_manifest(version)
    manifest["compute_dtype"] = dtype
    manifest["parity"] |= {"atol": tolerance, "rtol": tolerance}
    (version / "assets.extra/tpuserve/manifest.json").write_text(json.dumps(manifest))


def shift(version: Path, distance: float) -> None:
    """Shift every recorded response by `distance`."""
    import tensorflow as tf

    logs = logs_of(version)
    for log in logs:
        for name, proto in log.predict_log.response.outputs.items():
            moved = tf.make_ndarray(proto) + np.float32(distance)
            log.predict_log.response.outputs[name].CopyFrom(tf.make_tensor_proto(moved))
    rewrite(version, logs)


def test_warm_up_requests_have_the_versions_answers_and_load_tests_read_them(version: Path) -> None:
    import tensorflow as tf

    model = tf.saved_model.load(str(version))
    for log in logs_of(version):
        inputs = {name: tf.make_ndarray(proto) for name, proto in log.predict_log.request.inputs.items()}
        answer = model.signatures["serving_default"](**{name: tf.constant(each) for name, each in inputs.items()})
        outputs = log.predict_log.response.outputs
        assert outputs.keys() == answer.keys()
        for name, value in answer.items():
            np.testing.assert_allclose(tf.make_ndarray(outputs[name]), value.numpy(), rtol=1e-5)
    golden = read_golden_version(version)
    assert (len(golden.logged), golden.notes) == (2, ())


def test_a_fingerprint_is_of_requests_and_not_of_answers(version: Path) -> None:
    before = hash_requests(version)
    shift(version, 1.0)
    assert hash_requests(version) == before
    rewrite(version, logs_of(version)[:1])
    assert hash_requests(version) != before


def test_answers_that_would_be_too_large_are_omitted(
    export: Callable[..., Finished], tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "_MOST_ANSWER_BYTES", 10)  # responses of one row take 8 bytes
    assert export(tiny_checkpoint, tmp_path / "tiny", *TINY).code == 0
    assert [bool(log.predict_log.response.outputs) for log in logs_of(tmp_path / "tiny/1")] == [True, False]


def test_a_version_that_answers_as_recorded_passes(version: Path) -> None:
    code, document = check(version)
    assert (code, document["ok"], document["answers"]["beyond"]) == (0, True, None)
    assert (document["answers"]["requests"], document["answers"]["atol"]) == (2, 1e-5)
    shift(version, 0.01)
    code, document = check(version)
    assert (code, document["ok"]) == (3, False)
    assert document["answers"]["max_abs_difference"] == pytest.approx(0.01, rel=1e-3)


def test_another_version_is_held_to_the_wider_manifest(version: Path) -> None:
    other = version.with_name("2")
    shutil.copytree(version, other)
    shift(other, 0.01)
    assert check(version, "--against", other)[0] == 3
    precise(other, "mixed_bfloat16", 0.02)
    for versions in ((version, other), (other, other)):
        code, document = check(versions[0], "--against", versions[1])
        assert code == 0
        assert document["answers"]["allowed_by"] == (
            f"mixed_bfloat16, from the manifest of {other}; set --atol and --rtol to change it"
        )
    code, document = check(version, "--against", other, "--atol", "1e-3", "--rtol", "0")
    assert (code, document["answers"]["allowed_by"]) == (3, "set with --atol and --rtol")


def test_requests_that_another_version_does_not_take_are_exit_code_9(version: Path) -> None:
    other = shutil.copytree(version, version.with_name("2"))
    logs = logs_of(other)
    for log in logs:
        (name,) = log.predict_log.request.inputs
        log.predict_log.request.inputs["renamed"].CopyFrom(log.predict_log.request.inputs.pop(name))
    rewrite(other, logs)
    code, document = check(version, "--against", other)
    assert code == 9
    assert "record 0 has inputs ['renamed'], but serving_default takes ['features']" in document["error"]


def test_a_version_without_recorded_answers_is_exit_code_6(version: Path, tmp_path: Path) -> None:
    (version / WARMUP_FILE).unlink()
    code, document = check(version)
    assert code == 6
    assert "has no recorded answers. Export it again" in document["error"]
    assert check(tmp_path / "nowhere")[0] == 6


@pytest.mark.parametrize(
    "arguments", [("--tpu", "v5e:1x1", "--atol", "1"), ("--shard", "a=model", "--mesh", "model=2")]
)
def test_options_that_would_change_nothing_are_usage_errors(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, [str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert "no effect with" in done.output
