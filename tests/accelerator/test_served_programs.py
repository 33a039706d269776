"""Tests for device programs on a TPU or GPU, through real servers."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.accelerator.device_server import DeviceServer
from tests.support.device_programs import Part, write_programs
from tpuserve_client import Client
from tpuserve_server.core.terms.types import Array

pytestmark = [pytest.mark.accelerator, pytest.mark.slow]

Serve = Callable[..., DeviceServer]
MIB = 2**20
WIDTH = 256
# A GPU computes float32 products in TensorFloat-32, with 10 bits of mantissa, and a TPU in bfloat16, with 7.
TOLERANCE = {"gpu": 5e-3, "tpu": 3e-2}
BFLOAT16_TOLERANCE = 3e-2


def weight(seed: int, dtype: type = np.float32) -> Array:
    values: Array = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    return values.astype(dtype)


def write_layer(path: Path, seed: int = 0, dtype: type = np.float32) -> Path:
    """Write a version: x (float32 [rows, 256]) -> y = tanh(x w), with w and the product in `dtype`."""
    tensor = ("float32", (None, WIDTH))

    def function(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        return (jnp.tanh(x.astype(w.dtype) @ w).astype(jnp.float32),)

    return write_programs(path, Part(function, {"x": tensor}, {"y": tensor}, {"w": weight(seed, dtype)}))


def write_sized(path: Path, size_bytes: int) -> Path:
    """Write a version with this many bytes of weights: x (float32 [rows, 256]) -> y = x + the first row."""
    tensor = ("float32", (None, WIDTH))
    zeros = np.zeros((size_bytes // 4 // WIDTH, WIDTH), np.float32)
    return write_programs(
        path, Part(lambda x, w: (x + w[0],), {"x": tensor}, {"y": tensor}, {"w": zeros}), batch_sizes=(1,)
    )


def rows(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def is_available(served: DeviceServer, version: int) -> bool:
    state = served.versions("m").get(version, {}).get("state")
    return bool(state == "AVAILABLE")


def test_both_protocols_answer_as_numpy_does_and_the_device_is_shown(serve: Serve, device: str, tmp_path: Path) -> None:
    write_layer(tmp_path / "m" / "1")
    served = serve({"m": tmp_path / "m"})
    for address in (served.server.grpc, served.server.rest):
        with Client(address) as client:
            for count in (1, 2, 3, 4):
                x = rows(count)
                y = client.predict("m", {"x": x})["y"]
                np.testing.assert_allclose(y, np.tanh(x @ weight(0)), atol=TOLERANCE[device])
    (found,) = served.status()["devices"]
    assert found["name"] == f"{device}:0"
    assert found["busy_s"] > 0
    assert found["memory_bytes"]["limit"] > found["memory_bytes"]["in_use"] >= WIDTH * WIDTH * 4
    assert served.versions("m")[1]["device"] == device
    page = served.metrics()
    assert f'tpuserve_version_device{{device="{device}",fallback="",model_name="m",version="1"}} 1.0' in page
    assert f'tpuserve_device_memory_bytes{{device="{device}:0",kind="in_use"}}' in page


def test_versions_in_float32_and_bfloat16_run_side_by_side(serve: Serve, device: str, tmp_path: Path) -> None:
    write_layer(tmp_path / "m" / "1", 0)
    write_layer(tmp_path / "m" / "2", 1, ml_dtypes.bfloat16)
    served = serve({"m": tmp_path / "m"})
    served.wait_for(lambda: {1, 2} == {n for n, one in served.versions("m").items() if one["state"] == "AVAILABLE"})
    x = rows(4)
    with Client(served.server.grpc) as client:
        first, second = (client.predict("m", {"x": x}, version=version)["y"] for version in (1, 2))
    np.testing.assert_allclose(first, np.tanh(x @ weight(0)), atol=TOLERANCE[device])
    np.testing.assert_allclose(second, np.tanh(x @ weight(1)), atol=BFLOAT16_TOLERANCE)


def test_reloads_and_an_unload_give_the_memory_back(serve: Serve, tmp_path: Path) -> None:
    base, other = tmp_path / "m", tmp_path / "other"
    write_layer(other / "1")
    write_sized(base / "1", 64 * MIB)
    served = serve({"other": other, "m": base})
    served.wait_until_only("m", 1)
    used = [served.memory()]
    for version in range(2, 6):
        shutil.copytree(base / str(version - 1), tmp_path / "new")
        (tmp_path / "new").rename(base / str(version))
        served.wait_for(partial(is_available, served, version))
        shutil.rmtree(base / str(version - 1))
        served.wait_until_only("m", version)
        used.append(served.memory())
    assert max(used) - used[0] < MIB
    served.configure({"other": other})
    served.wait_for(lambda: served.memory() < used[0] - 63 * MIB)


@pytest.mark.skipif(not os.environ.get("JAX_PLATFORMS", "").startswith("cuda"), reason="sets the memory of a GPU")
def test_a_version_without_memory_fails_to_load_and_the_others_answer(serve: Serve, tmp_path: Path) -> None:
    layer, large = tmp_path / "layer", tmp_path / "large"
    write_layer(layer / "1")
    served = serve({"layer": layer}, XLA_PYTHON_CLIENT_MEM_FRACTION="0.01")
    limit = served.memory("limit")
    write_sized(large / "1", limit * 55 // 100)
    write_sized(large / "2", limit * 12 // 10)
    served.configure({"layer": layer, "large": large})
    served.wait_for(lambda: {one["state"] for one in served.versions("large").values()} == {"AVAILABLE", "END"})
    refused = served.versions("large")[2]
    assert refused["code"] == "RESOURCE_EXHAUSTED"
    assert re.search(r"out of memory: .*[MG]iB requested, .* of .*iB free before", refused["reason"]), refused
    with Client(served.server.grpc) as client:
        assert client.predict("layer", {"x": rows(2)})["y"].shape == (2, WIDTH)
        assert client.predict("large", {"x": rows(1)}, version=1)["y"].shape == (1, WIDTH)
