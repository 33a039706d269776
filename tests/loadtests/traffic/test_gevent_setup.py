"""Tests for the programs that a load test starts while it has gRPC channels."""

import subprocess
import sys

# gRPC's fork handlers abort about one in ten of the children, so a hundred show whether they run.
SCRIPT = """
from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent
give_process_to_gevent(forks_use_grpc=False)
import subprocess
from contextlib import suppress
from tpuserve_client import Client
from tpuserve_client.errors import TpuserveError
with Client("127.0.0.1:1", timeout_s=0.2) as client:
    for number in range(100):
        if number % 10 == 0:
            with suppress(TpuserveError):
                client.status("m", timeout_s=0.2)
        print(subprocess.run(["true"]).returncode)
"""


def test_every_program_that_starts_beside_grpc_channels_runs() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0"] * 100
