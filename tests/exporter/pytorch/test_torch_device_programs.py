"""Tests that PyTorch models match PyTorch as device programs, run through PJRT without TensorFlow."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.pytorch import modules
from tests.support.fake_device import FakeClock
from tpuserve_server.core.terms.servable import Executor, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

Export = Callable[..., Finished]
MODULES = "tests.exporter.pytorch.modules"


def no_tensorflow() -> Executor:
    raise AssertionError("nothing here has a host part")


def run(version: Path, **inputs: np.ndarray) -> Tensors:
    executor = PjrtExecutor(PjrtOptions("cpu"), no_tensorflow, DeviceMeasurements(), FakeClock())
    servable = executor.load(ServableId("m", 1), VersionFiles(version))
    names = tuple(servable.signatures["serving_default"].outputs)
    outputs = servable.dispatch("serving_default", inputs, names).result()
    servable.close()
    return outputs


def saved(module: torch.nn.Module, path: Path) -> torch.nn.Module:
    torch.save(module.state_dict(), path)
    return module.eval()


def test_rows_of_any_number(export: Export, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = modules.tiny()
    module(torch.rand(16, 3))  # changes the batch statistics
    saved(module, tmp_path / "model.pt")
    arguments = ("--model", f"{MODULES}:tiny", "--input", "features:float32[batch,3]", "--batch-sizes", "1,4")
    done = export(tmp_path / "model.pt", tmp_path / "m", *arguments, "--device-programs", "--json")
    assert done.code == 0, done.err
    programs = read_manifest(tmp_path / "m/1")["device"]["parts"]["device"]["programs"]
    assert [program["batch_size"] for program in programs] == [1, 4]
    rows = np.random.default_rng(3).random((3, 3)).astype(np.float32)
    (scores,) = run(tmp_path / "m/1", features=rows).values()
    with torch.no_grad():
        np.testing.assert_allclose(scores, module(torch.from_numpy(rows)).numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_sequences_of_int64_up_to_the_longest_program(export: Export, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = saved(modules.Encoder(), tmp_path / "model.pt")
    inputs = ("--input", "ids:int64[batch,length]", "--input", "mask:int64[batch,length]")
    sizes = ("--batch-sizes", "2", "--sequence-buckets", "4,8")
    done = export(
        tmp_path / "model.pt", tmp_path / "m", "--model", f"{MODULES}:Encoder", *inputs, *sizes, "--device-programs"
    )
    assert done.code == 0, done.err
    ids = np.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 0, 0, 0]])
    mask = (ids > 0).astype(np.int64)
    outputs = run(tmp_path / "m/1", ids=ids, mask=mask)
    with torch.no_grad():
        expected = module(torch.from_numpy(ids), torch.from_numpy(mask))
    np.testing.assert_allclose(outputs["pooled"], expected.pooled.numpy(), atol=1e-5)
    assert outputs["longest"].tolist() == [6, 3]
