"""Tests that checkpoints of torch.distributed.checkpoint are read without a process group and without their pickles."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from tests.exporter.conftest import Finished
from tests.exporter.pytorch import modules
from tests.exporter.pytorch.test_torch_export import ROWS, TINY, answers
from tests.exporter.served import call
from tests.support.free_ports import free_ports
from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.look import inspect
from tpuserve_exporter.sources.torch.distributed_metadata import METADATA
from tpuserve_exporter.sources.torch.weights_file import read_weights

Export = Callable[..., Finished]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save_from_two_processes(rank: int, folder: str, port: int) -> None:
    """Train for one step with fully sharded data parallelism, and save both layouts of torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = modules.tiny()
    torch.manual_seed(1)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.rand(16, 3)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=f"{folder}/parts")
    dcp.save(weights, storage_writer=HuggingFaceStorageWriter(f"{folder}/shards", save_distributed=True))
    whole = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))[0]
    if rank == 0:
        torch.save(whole, f"{folder}/whole.pt")
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo may abort a process that ends normally


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    torch.multiprocessing.spawn(save_from_two_processes, (str(folder), *free_ports(1)), nprocs=2)
    return folder


@pytest.fixture
def titan(trained: modules.Tiny, tmp_path: Path) -> Path:
    """Save as TorchTitan does: weights at the top, the optimizer's state under joined names, the step as a tensor."""
    optimizer = torch.optim.AdamW(trained.parameters())
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    state = get_optimizer_state_dict(trained, optimizer, options=options)
    saved = {**trained.state_dict(), "optimizer": state, "train_state": {"step": torch.tensor(1000)}, "seed": 3}
    dcp.save(saved, checkpoint_id=tmp_path / "step-1000", no_dist=True)
    return tmp_path / "step-1000"


@pytest.mark.parametrize("layout", ["parts", "shards"])
def test_parts_of_several_processes_are_joined(sharded: Path, layout: str) -> None:
    whole = torch.load(sharded / "whole.pt")
    found = read_weights(sharded / layout, unsafe=False)
    path = "app.model" if layout == "parts" else ""
    assert found.sets.keys() == {path}
    assert found.sets[path].keys() == whole.keys()
    assert all(torch.equal(found.sets[path][name], tensor) for name, tensor in whole.items())
    assert bool(found.optimizer_state) == (layout == "parts")


def test_a_checkpoint_of_torchtitan_is_served(
    export: Export, titan: Path, trained: modules.Tiny, tmp_path: Path
) -> None:
    finished = export(titan, tmp_path / "base", *TINY)
    assert finished.code == 0, finished.err
    assert "torch step-1000 at step 1000; 9 matched, 18 of optimizer state not used" in finished.out.replace("\n", " ")
    np.testing.assert_allclose(
        call(tmp_path / "base/1", features=ROWS)["outputs"], answers(trained, ROWS)[0], atol=1e-6
    )


def test_inspect_lists_tensors_by_part(titan: Path) -> None:
    contents = inspect(titan)
    assert contents.kind == "PyTorch distributed checkpoint"
    by_part = {part: [one.name for one in contents.arrays if one.part == part] for part in ("model", "optimizer")}
    assert {"hidden.weight", "train_state/step"} <= set(by_part["model"])
    assert "optimizer/state.hidden.weight.exp_avg" in by_part["optimizer"]
    (titan / "__0_0.distcp").write_bytes(b"")
    assert any("__0_0.distcp is truncated" in one for one in inspect(titan).problems)


def test_incomplete_checkpoints_are_refused(export: Export, titan: Path, tmp_path: Path) -> None:
    def refused(code: int) -> str:
        finished = export(titan, tmp_path / "base", *TINY)
        assert (finished.code, (tmp_path / "base").exists()) == (code, False)
        return " ".join(finished.err.split())

    stored = titan / "__0_0.distcp"
    shutil.copy(stored, tmp_path / "kept")
    stored.write_bytes(stored.read_bytes()[:3000])
    assert "If it is truncated, copy it again" in refused(6)
    (titan / "__1_0.distcp").write_bytes(b"")
    stored.unlink()
    assert "step-1000 lacks __0_0.distcp, which its .metadata lists" in refused(6)
    (titan / METADATA).write_bytes(b"no pickle")
    assert "step-1000/.metadata is damaged or not of torch.distributed.checkpoint" in refused(6)


class Trap:
    """An object that makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_runs_code_is_not_run(titan: Path, tmp_path: Path) -> None:
    (titan / METADATA).write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    for read in (lambda: read_weights(titan, unsafe=True), lambda: inspect(titan)):
        with pytest.raises(SourceUnreadable, match="is damaged or not of torch"):
            read()
    assert not (tmp_path / "ran").exists()
