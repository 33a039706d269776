"""Tests of PyTorch models. test_torch_environment runs them in an environment with torch (make torch)."""

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.exporter.pytorch.modules import Tiny

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="module")
def trained() -> "Tiny":
    """Return `tiny` with changed batch statistics."""
    import torch

    from tests.exporter.pytorch import modules

    torch.manual_seed(1)
    model = modules.tiny()
    model(torch.rand(16, 3))
    model.eval()
    return model
