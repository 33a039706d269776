"""Tests that graphs with operations of TensorFlow Text and Decision Forests run, in a process that lacks them."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.forged_graphs import ForgedModel, add_node
from tests.support.saved_models import save_half_plus_two
from tpuserve_formats.operation_libraries import LIBRARIES, OperationLibrary
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_server.core.terms.errors import FailedPrecondition, NotFound
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.plugin import MissingRuntime
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.graph_needs import choose_graph, require

pytestmark = pytest.mark.xdist_group(__name__)


def _save(function: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Save a third-party model in another process, because its packages register the operations."""
    program = (
        "import pathlib, pickle, sys; from tests.strangers.models import tokenisers\n"
        f"answers = tokenisers.{function}(pathlib.Path(sys.argv[1]))\n"
        "pathlib.Path(sys.argv[1], 'answers').write_bytes(pickle.dumps(answers))"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, capture_output=True)
    ((exchange,),) = pickle.loads((folder / "answers").read_bytes()).values()
    inputs, outputs = exchange
    return inputs, outputs


@pytest.mark.parametrize(
    ("function", "package"),
    [("save_bert", "tensorflow_text"), ("save_sentencepiece", "tensorflow_text"), ("save_forest", "ydf_tf")],
)
def test_a_graph_runs_without_the_import_of_the_package(tmp_path: Path, function: str, package: str) -> None:
    inputs, expected = _save(function, tmp_path)
    executor = TensorFlowExecutor(TensorFlowOptions())
    servable = executor.load(ServableId("m", 1), VersionFiles(tmp_path / "saved", is_cached=True))
    # Servers may keep the answers to equal requests, and try a made-up row before the version serves.
    repeats = function != "save_sentencepiece"
    assert (not servable.unrepeatable, not servable.signatures["serving_default"].has_effects) == (repeats, repeats)
    answers = servable.dispatch("serving_default", inputs, tuple(expected)).result()
    servable.close()
    for name, values in expected.items():
        if values.dtype == object:
            assert answers[name].tolist() == values.tolist()
        else:
            np.testing.assert_allclose(answers[name], values, atol=1e-6)
    assert package not in sys.modules


def test_the_tables_have_every_operation_of_the_installed_libraries() -> None:
    for library in LIBRARIES:
        files = library.shared_objects()
        assert set[str]().union(*map(_operations_of, files)) == library.operations


def _operations_of(file: Path) -> set[str]:
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    handle = pywrap_tf_session.TF_LoadLibrary(str(file))
    return {one.name for one in op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetOpList(handle)).op}


def test_a_missing_library_is_named_with_its_command() -> None:
    absent = OperationLibrary("Nonsense", "nonsense", "nonsense", "nonsense_that_is_absent", "*.so", frozenset({"Foo"}))
    assert absent.shared_objects() == []
    with pytest.raises(MissingRuntime) as caught:
        require(absent, {"Foo", "MatMul"})
    assert caught.value.message == (
        "the version's SavedModel needs Foo of Nonsense, which is not installed: pip install "
        "'tpuserve-server[nonsense]'"
    )


def test_an_operation_of_no_library_is_named(tmp_path: Path) -> None:
    model = ForgedModel()
    add_node(model.graph, "y", "CustomGelu")
    (tmp_path / "saved_model.pb").write_bytes(model.serialize())
    executor = TensorFlowExecutor(TensorFlowOptions(allowed_ops=("CustomGelu",)))
    with pytest.raises(FailedPrecondition, match="operations that this server does not have: CustomGelu"):
        executor.load(ServableId("m", 1), VersionFiles(tmp_path))


def test_the_tags_of_the_graphs_are_listed(tmp_path: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    graphs = list(read_graphs((path / "saved_model.pb").read_bytes()))
    with pytest.raises(NotFound) as caught:
        choose_graph(graphs, ("serve", "tpu"))
    assert caught.value.message == (
        "Could not find meta graph def matching supplied tags: { serve, tpu }. Its graphs have the tags { serve }. "
        "Export the SavedModel with tpuserve export --tag-set, or load another graph with --saved_model_tags=serve"
    )
