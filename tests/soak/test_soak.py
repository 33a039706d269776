"""Tests of the soak itself: each kind of fault once, and the exit status and table of its command."""

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


def test_each_fault_once_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.soak", "--minutes=0", "--seed=1", "--rate=30", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong 0, accepted and lost 0, errors without a cause 0, exit status 0\npassed\n" in done.stdout
    document = json.loads(out.read_text())
    applied = {one["fault"] for one in document["faults"]}
    assert applied | document["skipped"].keys() == {fault.name for fault in FAULTS}
    # A small disk needs root.
    assert len(applied) >= len(FAULTS) - 1
    assert {name for name, count in document["answered"].items() if count} == PROTOCOLS
