"""Test that garbage collection during a load does not scan the imported modules."""

import subprocess
import sys

# Runs in its own process, because gevent must not run in the tests' process.
PROGRAM = """
from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent
give_process_to_gevent()
import gc
from tpuserve_loadtests.traffic.engine import Engine
from tpuserve_loadtests.traffic.target import Target
from tpuserve_loadtests.requests.workload import Workload
with Engine(Target(Workload(()), {}, 1.0)):
    print(gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_objects_from_before_the_load_are_not_scanned() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=100)
    frozen, scanned = map(int, ended.stdout.split())
    assert frozen > 10 * scanned
