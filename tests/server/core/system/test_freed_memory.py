"""Tests that glibc keeps freed memory in one heap, until it is trimmed."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="glibc on Linux")

# Threads free 100 MB twice. The second time needs no new pages, because the heap has kept those of the first.
PROGRAM = """
import os, resource, sys, threading
from tpuserve_server.core.system.freed_memory import keep_freed_memory, trim_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def fill():
    bytearray(b"x") * 100_000_000
def run():
    thread = threading.Thread(target=fill); thread.start(); thread.join()
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
run()
before = faults()
run()
new, kept_mb = faults() - before, resident_mb()
trim_memory()
print(new > 10_000, kept_mb > 90, resident_mb() > 90)
"""


@pytest.mark.parametrize(
    ("mode", "variables", "expected"),
    [
        ("keep", {}, "False True False"),
        ("default", {}, "True False False"),
        ("keep", {"MALLOC_ARENA_MAX": "4"}, "True False False"),
    ],
    ids=["kept", "default", "the operator's options"],
)
def test_a_run_reuses_the_memory_of_the_last_one(mode: str, variables: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(command, env=clean | variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
