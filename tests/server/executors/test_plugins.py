"""Tests for executors of other packages: an ONNX executor that a distribution declares by an entry point."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest

from tests.e2e.running_server import run_in_environment
from tests.server.executors.onnx import EXECUTOR
from tests.server.executors.onnx.candidate import MODEL
from tests.support.free_ports import free_ports
from tpuserve_client import Client
from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.core.terms.types import Array
from tpuserve_server.executors import catalogue
from tpuserve_server.startup.settings import flags

ROOT = Path(__file__).parents[3]
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3) - 2
SHIFT = np.array([0.5, 0, -0.5], np.float32)
CLASSES = 3


def write_model(version: Path) -> None:
    """Write softmax(relu(x w + b)) for x float32 [rows, 2] as an ONNX model."""
    model = MODEL(ir_version=8)
    graph = model.graph
    for name, array in (("w", WEIGHTS), ("b", SHIFT)):
        graph.initializer.add(name=name, data_type=1, dims=array.shape, raw_data=array.tobytes())
    gemm = graph.node.add(op_type="Gemm", input=["x", "w", "b"], output=["linear"])
    gemm.attribute.add(name="alpha", f=1.0, type=1)
    graph.node.add(op_type="Relu", input=["linear"], output=["hidden"])
    graph.node.add(op_type="Softmax", input=["hidden"], output=["y"]).attribute.add(name="axis", i=-1, type=2)
    for values, name, width in ((graph.input, "x", 2), (graph.output, "y", CLASSES)):
        shape = values.add(name=name).type.tensor_type
        shape.elem_type = 1
        shape.shape.dim.add(dim_param="rows")
        shape.shape.dim.add(dim_value=width)
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model.SerializeToString())


def expected(x: Array) -> Array:
    powers = np.exp(np.maximum(x @ WEIGHTS + SHIFT, 0))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory of packages with the metadata of a distribution that has the executor."""
    folder = tmp_path / "site"
    info = folder / "tpuserve_onnx-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tpuserve-onnx\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{catalogue.GROUP}]\nonnx = tests.server.executors.onnx:EXECUTOR\n")
    return folder


def test_a_server_batches_and_warms_up_a_model_of_another_packages_executor(tmp_path: Path, site: Path) -> None:
    write_model(tmp_path / "m" / "1")
    ports = free_ports(2)
    environment = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    flags = (
        f"--rest_api_port={ports[1]}",
        "--model_name=m",
        f"--model_base_path={tmp_path / 'm'}",
        "--enable_batching",
        "--max_batch_size=8",
        "--batch_timeout_micros=500000",
        "--enable_model_warmup",
        "--onnx_most_nodes=3",
    )
    with run_in_environment(tmp_path / "log", ports, environment, *flags, model="m") as server:
        x = np.array([[1, 2], [-1, 0], [3, -4]], np.float32)
        with Client(server.grpc) as client:
            np.testing.assert_allclose(client.predict("m", {"x": x})["y"], expected(x), rtol=1e-6)
            (y,) = client.predict("m", {"x": x[:1]}).outputs.values()
            assert y.shape == (1, CLASSES)
            rows = [np.full((1, 2), number / 8, np.float32) for number in range(32)]
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda row: client.predict("m", {"x": row})["y"], rows))
        np.testing.assert_allclose(np.concatenate(answers), expected(np.concatenate(rows)), rtol=1e-6)
        body = json.dumps({"instances": x.tolist()}).encode()
        with urllib.request.urlopen(f"{server.rest}/v1/models/m:predict", body) as reply:
            np.testing.assert_allclose(json.load(reply)["predictions"], expected(x), rtol=1e-6)
        with urllib.request.urlopen(f"{server.rest}/metrics") as reply:
            metrics = reply.read().decode()
        assert server.terminate() == 0
    assert _value(metrics, "processed_batch_size_count") < _value(metrics, "input_batch_size_count")
    log = server.log.read_text()
    assert "Warmed {name: m version: 1}" in log
    assert "CPU (numpy" in log


def _value(metrics: str, ending: str) -> float:
    (line,) = (line for line in metrics.splitlines() if line.partition("{")[0].endswith(ending))
    return float(line.rpartition(" ")[2])


@dataclass(frozen=True, slots=True)
class ClashingOptions:
    pools: Annotated[int, Setting("Runtime", "Number of pools.", name="num_tflite_pools")] = 1


CLASHING = replace(EXECUTOR, options=ClashingOptions)


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that adds an entry point of another package, with this value."""

    def add(value: str) -> None:
        monkeypatch.setattr(catalogue, "entry_points", lambda group: (EntryPoint("wrong", value, group),))
        clear()

    def clear() -> None:
        catalogue.executor_plugins.cache_clear()
        flags.cache_clear()

    yield add
    monkeypatch.undo()
    clear()


def test_an_entry_point_that_is_no_executor_is_refused(declare: Callable[[str], None]) -> None:
    declare("json:loads")
    with pytest.raises(TypeError, match=r"entry point wrong of tpuserve\.executors, json:loads, is not an Exec"):
        catalogue.executor_plugins()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_package:EXECUTOR", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("json:EXECUTOR", "AttributeError: module 'json' has no attribute 'EXECUTOR'"),
    ],
)
def test_an_entry_point_that_cannot_be_imported_is_named(
    declare: Callable[[str], None], value: str, reason: str
) -> None:
    declare(value)
    with pytest.raises(ImportError) as caught:
        catalogue.executor_plugins()
    assert str(caught.value) == (
        f"The entry point wrong of tpuserve.executors, {value}, cannot be imported: {reason}. Reinstall or uninstall "
        "its package."
    )


def test_a_flag_of_two_executors_is_refused_with_the_names_of_both(declare: Callable[[str], None]) -> None:
    declare(f"{__name__}:CLASHING")
    with pytest.raises(
        ValueError, match=r"^tpuserve_server\.executors\.tflite\.TfliteOptions and .*\.ClashingOptions dec"
    ):
        flags()
