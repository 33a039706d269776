"""Tests for the checks that prevent publication and for those that only warn."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
TINY = ("--model", "tests.exporter.builders:tiny")


def test_a_model_that_differs_with_every_trace_fails_parity(
    export: Export, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    unsteady = ("--model", "tests.exporter.builders:unsteady", "--allow-unused", "*")
    finished = export(tiny_checkpoint, tmp_path / "unsteady", *unsteady, "--atol", "1e-9", "--rtol", "0")
    assert finished.code == 3
    assert "output 'scores' differs by up to" in finished.err
    assert not (tmp_path / "unsteady").exists()


def test_parity_tolerance_is_the_users(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    unsteady = ("--model", "tests.exporter.builders:unsteady", "--allow-unused", "*")
    finished = export(tiny_checkpoint, tmp_path / "unsteady", *unsteady, "--atol", "2")
    assert finished.code == 0, finished.err
    parity = read_manifest(tmp_path / "unsteady/1")["parity"]
    assert 0 < parity["max_abs_difference"] < 2
    assert parity["atol"] == 2


def test_dependent_rows_are_published_with_a_warning(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    dependent = ("--model", "tests.exporter.builders:row_dependent", "--allow-unused", "*")
    finished = export(tiny_checkpoint, tmp_path / "mean", *dependent)
    assert finished.code == 0, finished.err
    assert "a row of serving_default depends on the batch size" in finished.out
    assert read_manifest(tmp_path / "mean/1")["signatures"]["serving_default"]["rows_independent"] is False


def test_dry_run_checks_and_leaves_the_base_alone(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--dry-run")
    assert finished.code == 0
    assert "Checked, not published (dry run)" in finished.out
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_document(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--json", "--report", report)
    document = finished.document
    assert (finished.code, finished.err) == (0, "")
    assert document["ok"] is True
    assert (document["version"], document["path"]) == (1, str(tmp_path / "tiny" / "1"))
    assert document["manifest"] == read_manifest(tmp_path / "tiny/1")
    assert document["restore"]["counts"]["matched"] == 4
    assert document["restore"]["bookkeeping"] == ["step", "save_counter"]
    assert document["warmup_records"] == 6
    assert report.read_text() == finished.out


def test_json_failure_lists_what_does_not_fit(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    extra = ("--model", "tests.exporter.builders:tiny_with_extra")
    finished = export(tiny_checkpoint, tmp_path / "tiny", *extra, "--json")
    document = finished.document
    assert (finished.code, document["ok"], document["exit_code"]) == (2, False, 2)
    assert document["kind"] == "CheckpointMismatch"
    missing = [one["name"] for one in document["restore"]["variables"] if one["fate"] == "missing"]
    assert missing == ["extra/kernel", "extra/bias"]


def test_json_stays_one_document_whatever_a_builder_prints(
    export: Export, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    finished = export(
        tiny_checkpoint, tmp_path / "tiny", "--model", "tests.exporter.builders:talkative", "--dry-run", "--json"
    )
    assert finished.document["ok"] is True
    assert finished.err == "building\n"


def test_json_says_that_an_export_was_broken_off(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupted = ("--model", "tests.exporter.builders:interrupted", "--json")
        finished = export(tiny_checkpoint, tmp_path / "tiny", *interrupted, "--report", tmp_path / "report.json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (finished.code, finished.document["exit_code"], finished.document["ok"]) == (130, 130, False)
    assert (tmp_path / "report.json").read_text() == finished.out
    assert not (tmp_path / "tiny").exists()


def test_a_report_that_cannot_be_written_is_refused_at_once(
    export: Export, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    report = tmp_path / "absent" / "report.json"
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--report", report)
    assert (finished.code, "does not exist or is not writable" in finished.err) == (2, True)
    assert finished.out == ""


def test_a_report_that_fails_in_the_end_hides_no_outcome(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    full = Path("/dev/full")  # opens, but every write fails
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--report", full)
    assert (finished.code, "Published version 1" in finished.out) == (0, True)
    assert "warning: cannot write /dev/full: No space left on device" in finished.err
    finished = export(tmp_path / "nothing", tmp_path / "tiny", *TINY, "--report", full)
    assert (finished.code, "there is no" in finished.err) == (6, True)


def test_json_covers_wrong_usage(export: Export, tmp_path: Path) -> None:
    finished = export(tmp_path, tmp_path / "base", "--json", "--batch-sizes", "0")
    assert finished.code == 2
    assert finished.document["ok"] is False
    assert "not a list of positive numbers" in finished.document["error"]


def test_given_samples_are_checked_and_warm_the_model(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "check.npz", features=np.random.default_rng(0).random((70, 3)))
    warm: dict[str, Any] = {"serving_default/features": np.full((1, 3), 0.5)}
    np.savez(tmp_path / "warm.npz", **warm)
    samples = ("--check", tmp_path / "check.npz", "--warmup", tmp_path / "warm.npz")
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, *samples)
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "tiny/1")["parity"]["rows"] == 70
    requests = (tmp_path / "tiny/1/assets.extra/tf_serving_warmup_requests").read_bytes()
    assert np.full(32 * 3, 0.5, np.float32).tobytes() in requests


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.ones((2, 3))}, "no array for input 'features'"),
        ({"features": np.ones((2, 4))}, "the sample has shape [2, 4]"),
        ({"features": np.ones((0, 3))}, "at least one"),
        ({"features": np.ones((2, 3), complex)}, "the sample has dtype complex128"),
    ],
)
def test_samples_that_do_not_fit_are_explained(
    export: Export, tiny_checkpoint: Path, tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "check.npz", **arrays)
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--check", tmp_path / "check.npz")
    assert finished.code == 9
    assert message in finished.err
    assert not (tmp_path / "tiny").exists()


def test_an_npz_file_that_is_none_is_explained(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "check.npz").write_text("no zip")
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--check", tmp_path / "check.npz")
    assert (finished.code, "cannot read check.npz" in finished.err) == (9, True)


@pytest.mark.parametrize("damage", ["empty", "cut", "one array"])
def test_a_damaged_npz_file_is_explained(export: Export, tiny_checkpoint: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "check.npz"
    np.savez_compressed(path, features=np.random.default_rng(0).random((70, 3)))
    if damage == "one array":
        with path.open("wb") as file:
            np.save(file, np.ones((2, 3)))
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else 400])
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--check", path)
    assert (finished.code, "check.npz" in finished.err, "Traceback" in finished.err) == (9, True, False)


def test_a_repeated_row_counts_once(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "check.npz", features=np.ones((1, 3)))
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--check", tmp_path / "check.npz")
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "tiny/1")
    assert manifest["parity"]["rows"] == 1
    assert manifest["signatures"]["serving_default"]["rows_independent"] is True  # compared with made-up rows


def test_a_base_that_cannot_be_written_is_explained(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    finished = export(tiny_checkpoint, tmp_path / "file" / "base", *TINY)
    assert (finished.code, "cannot write to" in finished.err) == (5, True)


def test_model_arguments_are_checked(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--model-arg", "units")
    assert (finished.code, "not of the form NAME=VALUE" in finished.err) == (2, True)


def test_unsteady_builder_is_what_it_claims(tensorflow: None) -> None:
    import tensorflow as tf

    model, rows = builders.unsteady(), tf.zeros((1, 3))
    first, second = tf.function(lambda x: model(x))(rows), tf.function(lambda x: model(x))(rows)
    assert not np.array_equal(first, second)
