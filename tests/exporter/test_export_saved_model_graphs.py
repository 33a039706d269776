"""Tests that SavedModels with several graphs, TPU graphs or variables without values become versions that answer."""

import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter.conftest import Finished
from tests.exporter.served import serve
from tests.exporter.written_graph import read_meta_graph
from tpuserve_exporter.command.inspecting import command as inspect_command
from tpuserve_exporter.errors import MissingExtra
from tpuserve_exporter.graphs.operation_libraries import require
from tpuserve_formats.operation_libraries import OperationLibrary

pytestmark = pytest.mark.xdist_group(__name__)

Export = Callable[..., Finished]
Tensors = dict[str, np.ndarray]
Exchanges = dict[str, list[tuple[Tensors, Tensors]]]
SIZES = ("--batch-sizes", "1,4")


def _inspect(path: Path) -> Finished:
    done = CliRunner().invoke(inspect_command, [str(path), "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    return Finished(done.return_value, done.stdout, done.stderr)


def _save(module: str, function: str, folder: Path) -> Exchanges:
    """Save a model of a third party, whose code has no types, and return requests and answers by signature."""
    saved: Exchanges = getattr(importlib.import_module(f"tests.strangers.models.{module}"), function)(folder)
    return saved


def _save_elsewhere(module: str, function: str, folder: Path) -> Exchanges:
    """Do as `_save` in another process, because the packages of the model register operations in theirs."""
    program = (
        f"import pathlib, pickle, sys; from tests.strangers.models import {module}\n"
        f"answers = {module}.{function}(pathlib.Path(sys.argv[1]))\n"
        "pathlib.Path(sys.argv[1], 'answers').write_bytes(pickle.dumps(answers))"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True)
    saved: Exchanges = pickle.loads((folder / "answers").read_bytes())
    return saved


def _check(version: Path, exchanges: Exchanges) -> None:
    for signature, ((inputs, expected),) in exchanges.items():
        answers = serve(version, signature, **inputs)
        assert answers.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(answers[name], values, atol=1e-6)


def test_the_graph_for_servers_is_the_only_one_of_the_version(export: Export, tensorflow: None, tmp_path: Path) -> None:
    answers = _save("tpu_estimators", "save_two_graphs", tmp_path)
    source = tmp_path / "saved"

    found = _inspect(source)
    assert (found.code, found.document["facts"]["tags"]) == (0, "serve")
    assert found.document["facts"]["graph serve,tpu"] == ("serving_default(x: float32[?, 5]) -> scores: float32[?, 4]")
    finished = export(source, tmp_path / "m", *SIZES)
    assert finished.code == 0, finished.err
    assert "has only the one with the tags serve. To export another, give --tag-set serve,tpu" in finished.out
    assert "not in Python" not in finished.out
    _check(tmp_path / "m/1", answers)
    assert list(read_meta_graph(tmp_path / "m/1").meta_info_def.tags) == ["serve"]

    chosen = export(source, tmp_path / "m", *SIZES, "--tag-set", "tpu,serve")
    assert chosen.code == 0, chosen.err
    assert "has only the one with the tags serve,tpu" in chosen.out
    _check(tmp_path / "m/2", answers)

    wrong = export(source, tmp_path / "m", "--tag-set", "train")
    assert wrong.code == 2
    assert "no graph with exactly the tags train. Choose one of its graphs with --tag-set serve or" in wrong.err


def test_a_call_of_a_tpu_core_becomes_a_call_of_any_device(export: Export, tensorflow: None, tmp_path: Path) -> None:
    answers = _save("tpu_estimators", "save_tpu_call", tmp_path)
    found = _inspect(tmp_path / "saved")
    assert found.code == 6
    assert "no graph has exactly the tag serve" in found.document["problems"][0]

    finished = export(tmp_path / "saved", tmp_path / "m", *SIZES)

    assert finished.code == 0, finished.err
    assert "the only graph of saved has the tags serve,tpu. In the version, it has the tag serve" in finished.out
    assert "TPUPartitionedCall" in finished.out
    _check(tmp_path / "m/1", answers)


def test_variables_that_only_python_restores_are_saved_again(export: Export, tensorflow: None, tmp_path: Path) -> None:
    answers = _save("unassigned", "save_copied_variables", tmp_path)
    reason = "reads the variables 'net/dense/bias', 'net/dense/kernel', 'net/norm/beta', "
    found = _inspect(tmp_path / "saved")
    assert (found.code, found.document["ok"]) == (6, False)
    assert reason in found.document["problems"][0]

    finished = export(tmp_path / "saved", tmp_path / "m", *SIZES)

    assert finished.code == 0, finished.err
    assert reason in finished.out
    assert "Python finds all values, so the export saved it again" in finished.out
    _check(tmp_path / "m/1", answers)


def test_a_table_that_only_python_initialises_is_saved_again(export: Export, tensorflow: None, tmp_path: Path) -> None:
    answers = _save("unassigned", "save_table", tmp_path)
    finished = export(tmp_path / "saved", tmp_path / "m")
    assert finished.code == 0, finished.err
    assert "the SavedModel saved cannot answer: signature 'serving_default' reads the table 'words'" in finished.out
    _check(tmp_path / "m/1", answers)


def test_a_variable_without_a_value_is_refused_by_name(export: Export, tensorflow: None, tmp_path: Path) -> None:
    _save("unassigned", "save_without_bias", tmp_path)
    finished = export(tmp_path / "saved", tmp_path / "m")
    assert finished.code == 6
    assert "the SavedModel saved cannot answer: signature 'serving_default' reads the variable 'bias'" in finished.err
    assert "Save the model again with all of its variables" in finished.err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("function", "need", "package"),
    [
        ("save_bert", "WordpieceTokenizeWithOffsets of TensorFlow Text", "tensorflow_text"),
        ("save_forest", "SimpleMLLoadModelFromPathWithHandle of Decision Forests", "ydf_tf"),
    ],
)
def test_operations_of_libraries_need_no_import_and_no_option(
    export: Export, tensorflow: None, tmp_path: Path, function: str, need: str, package: str
) -> None:
    answers = _save_elsewhere("tokenisers", function, tmp_path)
    found = _inspect(tmp_path / "saved").document
    assert found["operations"]["unknown"] == {}
    assert need in found["notes"][0]

    finished = export(tmp_path / "saved", tmp_path / "m", *SIZES)

    assert finished.code == 0, finished.err
    assert need in finished.out
    _check(tmp_path / "m/1", answers)
    assert package not in sys.modules


def test_a_missing_library_is_named_with_its_command() -> None:
    absent = OperationLibrary("Nonsense", "nonsense", "nonsense", "nonsense_that_is_absent", "*.so", frozenset({"Foo"}))
    with pytest.raises(MissingExtra, match="the graph needs Foo of Nonsense") as caught:
        require(absent, {"Foo", "MatMul"})
    assert "pip install 'tpuserve-exporter[nonsense]'" in str(caught.value)
