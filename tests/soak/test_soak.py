"""Tests of the soak itself: each kind of fault once, on both hosts, and the exit status and table of its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.soak import oip_grpc, oip_rest, tf_grpc, tf_rest
from tests.soak.chaos import FAULTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROTOCOLS = {tf_grpc.PROTOCOL, tf_rest.PROTOCOL, oip_grpc.PROTOCOL, oip_rest.PROTOCOL}


@pytest.mark.parametrize(
    "host", [pytest.param(host, marks=pytest.mark.xdist_group(host)) for host in ("envoy", "python")]
)
def test_each_fault_once_loses_nothing(host: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [
        sys.executable, "-m", "tests.soak", "--minutes=0", f"--host={host}", "--seed=1", "--rate=30", f"--out={out}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong 0, accepted and lost 0, errors without a cause 0, exit status 0\npassed\n" in done.stdout
    document = json.loads(out.read_text())
    applied = {one["fault"] for one in document["faults"]}
    assert applied | document["skipped"].keys() == {fault.name for fault in FAULTS}
    # The Python host has no supervisor, and a small disk needs root.
    assert len(applied) >= (13 if host == "envoy" else 10)
    assert {name for name, count in document["answered"].items() if count} == PROTOCOLS
