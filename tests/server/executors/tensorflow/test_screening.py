"""Tests that the executor refuses unsafe SavedModels before TensorFlow reads them, and loads those that are allowed."""

from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.saved_models import save_function, save_half_plus_two
from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions


def load(path: Path, *allowed: str) -> Servable:
    executor = TensorFlowExecutor(TensorFlowOptions(allowed_ops=allowed))
    return executor.load(ServableId("m", 1), VersionFiles(path))


def read(text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.io.read_file(text)}


def test_only_an_allowed_operation_loads_and_is_shown(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", read, tf.TensorSpec([], tf.string, "text"))
    for allowed in ((), ("WriteFile",)):
        with pytest.raises(FailedPrecondition, match=r"^this server refuses .*: ReadFile \(node ReadFile, function "):
            load(path, *allowed)
    servable = load(path, "WriteFile", "ReadFile")
    assert servable.device.endswith(", with ReadFile by --allowed_ops)")
    servable.close()


def test_an_allowed_operation_that_a_model_does_not_need_is_not_shown(tmp_path: Path) -> None:
    servable = load(save_half_plus_two(tmp_path / "1"), "ReadFile")
    assert "allowed_ops" not in servable.device
    servable.close()


def test_a_graph_in_pieces_is_refused_next_to_a_whole_one(tmp_path: Path) -> None:
    path = save_half_plus_two(tmp_path / "1")
    (path / "saved_model.cpb").write_bytes(b"pieces")
    with pytest.raises(InvalidArgument, match=r"this server cannot check saved_model\.cpb"):
        load(path)
