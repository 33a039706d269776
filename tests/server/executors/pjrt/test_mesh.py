"""Tests for versions on eight virtual CPU devices, in a separate process because JAX counts devices only once."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.deploy.dockerfile import ROOT
from tests.support.device_programs import Part, write_programs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

TABLE = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
BIAS = np.linspace(0, 1, 8, dtype=np.float32)
ONE, DATA, MODEL, BOTH, ODD = ("model=1", 8), ("data=8", 8), ("model=8", 8), ("data=2,model=4", 8), ("data=4", 2)

LOG = ("log", "", 0)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    part = Part(
        lambda ids, table, bias: (jnp.tanh(jnp.take(table, ids, axis=0).mean(axis=1) / 512 + bias), ids),
        {"ids": ("int64", (None, 3))},
        {"pooled": ("float32", (None, 8)), "ids": ("int64", (None, 3))},
        {"embedding/table": TABLE, "dense/bias": BIAS},
    )
    rules: dict[str, Sequence[str | None]] = {
        "good": ["model", None],
        "odd": [None, "model"],
        "unknown": ["batch", None],
        "deep": ["model", None, None],
        "none": [None, None],
    }
    made = tmp_path_factory.mktemp("versions")
    return {
        name: write_programs(
            made / name, part, batch_sizes=(2, 8), shard=[{"pattern": "^embedding/.*table$", "axes": axes}]
        )
        for name, axes in rules.items()
    }


@pytest.fixture(scope="module")
def found(versions: Mapping[str, Path]) -> Mapping[tuple[str, str, int], Any]:
    """Return results by version, mesh and rows, and the log under LOG."""
    asked = [
        *[("good", mesh, rows) for mesh, rows in (ONE, DATA, MODEL, BOTH, ODD)],
        *[("odd", "model=3", 8), ("unknown", "model=2", 8), ("deep", "model=2", 8), ("good", "data=16", 8)],
        ("none", "model=2", 8),
    ]
    arguments = json.dumps([(str(versions[name]), mesh, rows) for name, mesh, rows in asked])
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("eight_devices.py")), arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "server"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    return {LOG: ended.stderr, **dict(zip(asked, json.loads(ended.stdout), strict=True))}


@pytest.mark.parametrize(("mesh", "rows"), [ONE, DATA, MODEL, BOTH, ODD])
def test_answers_come_in_order_whatever_the_mesh(
    found: Mapping[tuple[str, str, int], Any], mesh: str, rows: int
) -> None:
    answer = found["good", mesh, rows]
    ids = np.arange(rows * 3).reshape(rows, 3)
    assert answer["ids"] == ids.tolist()
    np.testing.assert_allclose(answer["pooled"], np.tanh(TABLE[ids].mean(axis=1) / 512 + BIAS), atol=1e-6)
    assert answer["left"] == 0


@pytest.mark.parametrize(
    ("mesh", "shards", "device"),
    [
        (ONE, {"(64, 8)": [64, 8], "(8,)": [8]}, "CPU (PJRT"),
        (DATA, {"(64, 8)": [64, 8], "(8,)": [8]}, "CPU, mesh data=8,model=1 (PJRT"),
        (MODEL, {"(64, 8)": [8, 8], "(8,)": [8]}, "CPU, mesh data=1,model=8 (PJRT"),
        (BOTH, {"(64, 8)": [16, 8], "(8,)": [8]}, "CPU, mesh data=2,model=4 (PJRT"),
    ],
)
def test_weights_with_a_rule_are_split_over_model_and_no_others(
    found: Mapping[tuple[str, str, int], Any], mesh: tuple[str, int], shards: Mapping[str, Sequence[int]], device: str
) -> None:
    answer = found["good", *mesh]
    assert answer["shards"] == shards
    assert answer["device"].startswith(device)
    assert len(answer["gauges"]) == (1 if mesh == ONE else 8)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ("odd", "model=3", 8),
            "weight 'embedding/table' of shape [64, 8] cannot be split along model=3: 8 is not a multiple of 3",
        ),
        (
            ("unknown", "model=2", 8),
            "the shard rule for weight 'embedding/table' names axis 'batch'; the axes of a mesh are",
        ),
        (("deep", "model=2", 8), "the shard rule for weight 'embedding/table' has 3 axes; the weight has 2"),
        (("good", "data=16", 8), "the mesh requires 16 devices; PJRT found 8 of cpu"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(
    found: Mapping[tuple[str, str, int], Any], asked: tuple[str, str, int], message: str
) -> None:
    assert message in found[asked]["error"]


def test_executors_keep_their_contract_on_a_mesh() -> None:
    contract = str(ROOT / "tests/server/executors/test_executor_contract.py")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "mesh", contract],
        cwd=ROOT,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout
    assert "6 passed" in ended.stdout


def test_a_mesh_over_which_nothing_is_split_is_told(found: Mapping[tuple[str, str, int], Any]) -> None:
    assert "shards" in found["none", "model=2", 8]
    assert (
        found[LOG].count("model=2: no shard rule of the version matches a weight, so each device holds all weights")
        == 1
    )
