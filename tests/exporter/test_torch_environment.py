"""Tests that run PyTorch's tests in its environment. Without PyTorch, the error names the package to install."""

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.exporter.conftest import Finished
from tests.support.optional import cannot_run, find_torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="they are collected here")
def test_models_of_pytorch_pass_their_own_tests() -> None:
    programs = find_torch() or cannot_run("there is no whole .torch: make torch")
    command = [str(programs / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/exporter/pytorch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.xdist_group(__name__)
@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="torch is here")
def test_without_transformers_a_directory_names_its_extra(export: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    (tmp_path / "bert/pytorch_model.bin").write_bytes(b"PK")
    finished = export(tmp_path / "bert", tmp_path / "base")
    assert finished.code == 10
    assert "transformers (pip install 'tpuserve-exporter[huggingface]')" in " ".join(finished.err.split())
    assert not (tmp_path / "base").exists()


@pytest.mark.xdist_group(__name__)
@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="torch is here")
@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.pt2", "model.safetensors"])
def test_without_pytorch_the_extra_is_named(export: Callable[..., Finished], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK")
    finished = export(tmp_path / name, tmp_path / "base", "--model", "tests.exporter.builders:tiny")
    assert finished.code == 10
    assert "needs torch, torchax (pip install 'tpuserve-exporter[torch]')" in " ".join(finished.err.split())
    assert not (tmp_path / "base").exists()
