"""Tests for `tpuserve_exporter.export(...)` in a training script: the checks, options and errors of the command."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tpuserve_exporter
from tests.exporter import builders
from tests.exporter.conftest import read_manifest
from tpuserve_exporter import CheckpointMismatch, ExportedVersion, OptionConflict, ParityFailed, export
from tpuserve_exporter.reports.shown_progress import NotebookProgress
from tpuserve_exporter.terms.signature import Array

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

SIZES: dict[str, Any] = {"batch_sizes": (1, 2), "progress": False}


@pytest.fixture(scope="module")
def live(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportedVersion, keras.Model]:
    model = builders.tiny()
    base = tmp_path_factory.mktemp("live") / "tiny"
    rows = {"features": np.random.default_rng(1).random((5, 3), np.float32)}
    return export(model, base, check=rows, report=base.parent / "report.html", **SIZES), model


def test_importing_it_imports_no_framework() -> None:
    look = (
        "import sys, tpuserve_exporter; print({'tensorflow', 'keras', 'jax', 'click', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_everything_it_names_is_there() -> None:
    assert all(hasattr(tpuserve_exporter, name) for name in tpuserve_exporter.__all__)
    assert callable(tpuserve_exporter.export)


def test_a_model_of_this_process_is_published_as_it_answers(live: tuple[ExportedVersion, keras.Model]) -> None:
    import tensorflow as tf

    published, model = live
    assert (published.name, published.version, published.warnings) == ("tiny", 1, ())
    assert published.path is not None
    rows = np.ones((2, 3), np.float32)
    served = tf.saved_model.load(published.path).signatures["serving_default"](features=rows)
    np.testing.assert_allclose(served["scores"], model(rows), atol=1e-6)
    manifest = read_manifest(Path(published.path))
    assert manifest["source"]["kind"] == "keras"
    assert manifest["signatures"]["serving_default"]["batch_sizes"] == [1, 2]
    assert manifest["parity"]["rows"] == 5


def test_a_version_shows_itself(live: tuple[ExportedVersion, keras.Model], tmp_path: Path) -> None:
    published, _ = live
    assert repr(published) == f"<tiny: version 1 at {published.path}, largest difference 0, 0 warning(s)>"
    shown = published._repr_html_()
    assert "version 1 at" in shown
    assert "same first class" in shown
    published.save_report(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["version"] == 1
    page = Path(published.path or "").parents[1] / "report.html"
    assert "published as version 1" in page.read_text()


def test_tensorflows_remarks_are_held_back_and_its_level_is_as_before(tensorflow: None, tmp_path: Path) -> None:
    import tensorflow as tf

    output: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: output.append(record.getMessage())  # type: ignore[method-assign]
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    try:
        export(builders.tiny(), tmp_path / "tiny", dry_run=True, **SIZES)
        assert logger.level == logging.INFO
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert output == []


def test_a_model_can_still_be_trained_after_it_was_exported(live: tuple[ExportedVersion, keras.Model]) -> None:
    _, model = live
    before = model.get_weights()[-1].copy()
    model.compile("sgd", loss="mse")
    model.fit(np.ones((2, 3), np.float32), np.ones((2, 2), np.float32), verbose=0)
    assert not np.array_equal(before, model.get_weights()[-1])


def test_a_checkpoint_goes_the_commands_way(tiny_checkpoint: Path, tmp_path: Path) -> None:
    done = export(tiny_checkpoint, tmp_path / "tiny", model=builders.tiny, dry_run=True, **SIZES)
    assert (done.version, done.path) == (None, None)
    assert not (tmp_path / "tiny").exists()
    with pytest.raises(CheckpointMismatch) as failed:
        export(
            tiny_checkpoint, tmp_path / "tiny", model="tests.exporter.builders:tiny", model_arg={"units": 5},
            report=[tmp_path / "failed.json"], **SIZES,
        )  # fmt: skip
    assert failed.value.details["restore"].problems
    assert json.loads((tmp_path / "failed.json").read_text())["exit_code"] == 2
    assert not (tmp_path / "tiny").exists()


def test_a_live_model_has_the_same_checks(tensorflow: None, tmp_path: Path) -> None:
    with pytest.raises(ParityFailed):
        export(builders.unsteady(), tmp_path / "unsteady", **SIZES)
    assert not (tmp_path / "unsteady").exists()


def test_jax_parameters_of_this_process(tensorflow: None, tmp_path: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")

    def apply(params: dict[str, Array], x: Array) -> dict[str, Array]:
        return {"scores": jnp.tanh(x @ params["kernel"])}

    params = {"kernel": np.arange(6, dtype=np.float32).reshape(3, 2)}
    done = export((apply, params), tmp_path / "jax", input="x:float32[batch,3]", **SIZES)
    assert done.report["manifest"]["source"] == {
        "kind": "function",
        "name": "apply",
        "step": None,
        "builder": None,
        "provenance": [{"kind": "live", "count": 1}],
    }
    assert done.report["manifest"]["parity"]["max_abs_difference"] < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sizes": "many"}, "'many' is not a list of positive numbers"),
        ({"model": "a.b:c"}, "a live model already has its weights"),
        ({"compute_dtype": "bfloat16"}, "Save it, and export the file"),
    ],
)
def test_options_that_do_not_fit_are_told(
    tensorflow: None, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionConflict, match=message):
        export(builders.tiny(), tmp_path / "tiny", progress=False, **options)


def test_an_option_that_there_is_not_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"no option 'batchsizes'. Did you mean 'batch_sizes'\?"):
        export("nowhere", tmp_path / "tiny", batchsizes=3)


def test_what_is_no_model_is_refused_with_what_is(tensorflow: None, tmp_path: Path) -> None:
    with pytest.raises(OptionConflict, match=r"cannot export builtins.int. Pass a path, a Keras model"):
        export(3, tmp_path / "tiny", progress=False)


def test_a_notebooks_cell_shows_steps_as_they_go() -> None:
    shown: list[str] = []
    progress = NotebookProgress(shown.append, verbose=True)
    with progress.step("Compare <a> with the source") as step:
        step.advance(3, 14)
        step.detail = "equal"
    progress.warn("mind this")
    with pytest.raises(KeyError), progress.step("Publish"):
        raise KeyError
    assert "… Compare &lt;a&gt; with the source" in shown[0]
    assert "3 of 14" in shown[1]
    assert "✓ Compare &lt;a&gt; with the source" in shown[-1]
    assert ": equal" in shown[-1]
    assert "! mind this" in shown[-1]
    assert "✗ Publish" in shown[-1]
