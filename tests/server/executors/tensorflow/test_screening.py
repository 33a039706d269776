"""Tests that the executor refuses unsafe SavedModels before TensorFlow reads them, and loads those that are allowed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import as_text, save_function, save_half_plus_two
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions, executor
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.screening import check_operations


def load(path: Path, *allowed: str) -> Servable:
    return TensorFlowExecutor(TensorFlowOptions(allowed_ops=allowed)).load(ServableId("m", 1), VersionFiles(path))


def print_to(text: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.print("x", output_stream="file:///written")
    return {"y": text}


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


def test_a_text_that_pythons_parser_reads_in_another_way_is_checked_as_tensorflow_reads_it(tmp_path: Path) -> None:
    path = as_text(save_function(tmp_path / "1", print_to, tf.TensorSpec([], tf.string, "text")))
    text = path / "saved_model.pbtxt"
    # An escape in C++, and four characters in Python.
    forged = text.read_text().replace('"file:///written"', r'"\X66ile:///written"')
    assert text.write_text(forged) > len(r"\X66ile")
    with pytest.raises(FailedPrecondition, match=r"PrintV2 \(node PrintV2, function .*\) prints to a file"):
        load(path)


def test_a_graph_that_changes_after_the_check_is_loaded_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_half_plus_two(tmp_path / "1")
    unsafe = save_function(tmp_path / "2", read, tf.TensorSpec([], tf.string, "text"))

    def check_and_swap(*arguments: Any) -> tuple[str, ...]:  # noqa: ANN401 - those of check_operations
        found = check_operations(*arguments)
        with (path / "saved_model.pb").open("r+b") as file:  # In place, which a descriptor would see.
            file.write((unsafe / "saved_model.pb").read_bytes())
        (path / "saved_model.pb").unlink()
        (unsafe / "saved_model.pb").rename(path / "saved_model.pb")
        return found

    monkeypatch.setattr(executor, "check_operations", check_and_swap)
    servable = load(path)
    assert servable.dispatch("serving_default", {"x": np.array([[2]], np.float32)}, ("y",)).result()["y"].tolist() == [
        [3]
    ]
    servable.close()
