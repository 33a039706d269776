"""Tests for the preference of TensorFlow Lite models over SavedModels."""

import sys
from pathlib import Path

import pytest

from tests.server.executors.tensorflow_kinds import SPEC, converted, double_and_add, preferring_tflite
from tests.support.saved_models import save_function
from tests.support.tflite_models import save
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId


def load(executor: Executor, path: Path) -> Servable:
    return executor.load(ServableId("m", 1), VersionFiles(path, allows_bfloat16=True))


def test_tflite_is_preferred_where_it_is_and_the_saved_model_taken_where_not(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", double_and_add, SPEC)
    executor = preferring_tflite()
    assert "TensorFlow" in load(executor, path).device
    (path / "model.tflite").write_bytes(converted())
    assert "LiteRT" in load(executor, path).device


def test_without_litert_the_load_says_which_extra_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("executor", "model", "signatures"):
        monkeypatch.delitem(sys.modules, f"tpuserve_server.executors.tflite.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    executor = preferring_tflite()
    with pytest.raises(FailedPrecondition, match=r"pip install 'tpuserve-server\[tflite\]'"):
        load(executor, save(tmp_path / "1", b"x"))
