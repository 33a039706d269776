"""Test for a load test that replays the request log of a real server."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import HOSTS
from tests.e2e.running_server import run_server
from tests.support.device_programs import double_and_add, write_programs
from tests.support.saved_models import predict_request, write_warmup

pytestmark = [pytest.mark.slow]

COMMAND = str(Path(sys.executable).with_name("tpuserve-loadtest"))


def loadtest(*arguments: str) -> dict[str, Any]:
    command = [COMMAND, "run", "m", *arguments, "--generator-limit", "note", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stderr
    document: dict[str, Any] = json.loads(run.stdout)
    return document


@pytest.mark.xdist_group(HOSTS[0])
def test_what_a_server_logged_is_sent_to_it_again(tmp_path: Path) -> None:
    version = tmp_path / "m" / "1"
    write_warmup(version, predict_request(x=[[1.0, 2.0]]))
    warm_up = version / "assets.extra" / "tf_serving_warmup_requests"
    write_programs(version, double_and_add())
    logged = tmp_path / "requests" / "log"
    flags = ("--device=cpu", f"--request_log_path_prefix={logged}")
    with run_server(HOSTS[0], version.parent, tmp_path / "log", *flags) as server:
        addresses = ("--grpc", server.grpc, "--rest", server.rest)
        first = loadtest(*addresses, "--rate", "40", "--duration", "2s", "--warm-up", "0", "--rows", "1..4")
        (path,) = logged.parent.iterdir()
        while path.read_bytes().count(b"\n") < first["total"]["requests"]:
            time.sleep(0.1)  # another process writes the log after the responses
        sent = path.with_name("sent")  # a copy, because the server still writes to the log
        sent.write_bytes(path.read_bytes())
        again = loadtest(*addresses, "--recorded", str(sent), "--speed", "2", "--warm-up", "0")
        assert again["total"]["requests"] == first["total"]["requests"]
        assert again["rows_per_request"] == pytest.approx(first["rows_per_request"], rel=0.3)
        warmed = loadtest(*addresses, "--recorded", str(warm_up), "--users", "2", "--duration", "300ms")
        assert warmed["total"]["failures"] == 0
        assert server.terminate() == 0
