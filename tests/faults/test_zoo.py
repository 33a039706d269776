"""A part of the zoo on every run: valid and odd forms of inputs, and structures of JSON bodies (cases 43 to 45).

`make zoo` has the other models, forms and sizes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.dockerfile import ROOT
from tests.faults.fault_row import FaultRow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group(__name__)]

# Operations that end or hang the process, or fill it, for forms that the server refuses; and some harmless ones.
OPERATIONS = (
    "max_pool1d", "max_pool2d_free", "softmax_3d", "reduce_sum", "fake_quant_channels", "scatter_nd_rank_3",
    "block_lstm", "qr", "trace", "batch_matmul", "unique_axis", "conv2d", "gather_nd", "string_split", "table_lookup",
    "parse_example",
)  # fmt: skip
LAYERS = ("k_global_average_free", "k_max_1d")
CASES = {"wrong rank": 44, "wrong fixed dimension": 44}


def run(module: str, out: Path, *arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Run a command of the zoo, which must find no fault, and return its JSON."""
    command = [sys.executable, "-m", module, f"--out={out}", f"--models={out / 'models'}", *arguments]
    environment = {**os.environ, "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    [written] = out.glob("*.json")
    return json.loads(written.read_text())


@pytest.mark.parametrize(
    ("saved", "through", "names", "most"),
    [
        ("plain", "sandbox", OPERATIONS, 3),
        ("plain", "server", OPERATIONS, 1),
        ("exported", "sandbox", LAYERS, 8),
    ],
    ids=["operations", "servers", "exported layers"],
)
def test_valid_and_odd_forms_are_answered_rightly_or_refused(
    saved: str, through: str, names: tuple[str, ...], most: int, tmp_path: Path, record: Callable[[FaultRow], None]
) -> None:
    document = run(
        "tests.zoo", tmp_path, f"--saved={saved}", f"--through={through}", f"--only={','.join(names)}", f"--most={most}"
    )
    *rows, total = document["rows"]
    for row in rows:
        kind = row["forms of kind"]
        got = f"{row['answered']} answered, {row['refused']} refused, {row['failed']} failed"
        record(FaultRow(CASES.get(kind, 43), f"{kind} forms, {row['saved']}", "all", "answered or refused", got))
        assert kind != "valid" or row["answered"] == row["requests"]
        assert kind not in CASES or row["refused"] == row["requests"]
    assert int(total["models"]) == len(names)
    assert int(total["answered"]) > 0
    assert int(total["refused"]) > 0


def test_structures_of_json_are_answered_or_refused_beside_other_requests(
    tmp_path: Path, record: Callable[[FaultRow], None]
) -> None:
    lines = run("tests.zoo.body_sweep", tmp_path, "--sizes", "1", "64")
    for protocol in ("TF REST", "OIP REST"):
        found = [line for line in lines if line["protocol"] == protocol]
        counts = {verdict: sum(line["verdict"] == verdict for line in found) for verdict in ("answered", "refused")}
        assert all(counts.values())
        got = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        worst_ms = max(line["others_ms"] for line in found)
        expected = "answered or refused"
        record(FaultRow(45, "structures", protocol, expected, got, others_worst_ms=worst_ms))
