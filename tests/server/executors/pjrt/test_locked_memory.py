"""Tests for the limit of locked memory, in real processes that `prlimit` and `setpriv` start."""

import re
import resource
import shutil
import subprocess
import sys

import pytest

from tpuserve_server.executors.pjrt.locked_memory import raise_locked_memory

_NO_LIMIT = resource.RLIM_INFINITY
_HARD = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
LOOK = """
import logging, resource, sys
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.executors.pjrt.devices import find_devices
logging.basicConfig(format="%(message)s", stream=sys.stdout)
try:
    find_devices(sys.argv[1])
except ServingError:
    pass
names = {resource.RLIM_INFINITY: "unlimited"}
print("limits", *(names.get(each, each) for each in resource.getrlimit(resource.RLIMIT_MEMLOCK)))
"""
# Without SYS_RESOURCE, as in a container, also for root.
UNPRIVILEGED = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--no-new-privs")

pytestmark = pytest.mark.skipif(
    shutil.which("prlimit") is None or shutil.which("setpriv") is None, reason="needs prlimit and setpriv of util-linux"
)


def look(device: str, soft: str, hard: str, *prefix: str) -> str:
    """Return what a process with these limits in bytes prints: warnings, and its limits after it looked for devices."""
    command = ("prlimit", f"--memlock={soft}:{hard}", *prefix, sys.executable, "-c", LOOK, device)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_soft_limit_below_the_hard_one_is_raised_and_a_low_hard_one_reported() -> None:
    printed = look("tpu", "65536", "8388608", *UNPRIVILEGED)
    assert printed.endswith("limits 8388608 8388608\n")
    assert re.match(r"This process may lock 8\.0 MiB of memory, and the machine has [\d.]+ [GT]iB\. Transfers", printed)
    assert "`--ulimit memlock=-1` for Docker" in printed


def test_a_cpu_keeps_its_limits_and_reports_nothing() -> None:
    assert look("cpu", "65536", "8388608", *UNPRIVILEGED) == "limits 65536 8388608\n"


@pytest.mark.skipif(_HARD != _NO_LIMIT, reason="this machine has a hard limit")
def test_an_unlimited_hard_limit_needs_no_report() -> None:
    assert look("tpu", "65536", "unlimited", *UNPRIVILEGED) == "limits unlimited unlimited\n"


def test_a_process_with_sys_resource_raises_its_hard_limit() -> None:
    can = subprocess.run(
        ("prlimit", "--memlock=1:1", "prlimit", "--memlock=2:2", "true"), capture_output=True, check=False
    )
    if can.returncode:
        pytest.skip("needs the capability SYS_RESOURCE")
    # As in deploy/kubernetes/components/memlock: root with this capability alone.
    alone = ("setpriv", "--bounding-set=-all,+sys_resource", "--inh-caps=-all", "--no-new-privs")
    assert look("tpu", "65536", "8388608", *alone) == "limits unlimited unlimited\n"


@pytest.mark.parametrize(
    ("hard", "may_raise", "after", "reports"),
    [
        (8 << 20, True, _NO_LIMIT, False),
        (8 << 20, False, 8 << 20, True),
        (64 << 40, False, 64 << 40, False),
        (_NO_LIMIT, False, _NO_LIMIT, False),
    ],
)
def test_only_a_hard_limit_below_the_machines_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hard: int,
    may_raise: bool,
    after: int,
    reports: bool,
) -> None:
    limits = [(1 << 16, hard)]

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        if wanted[1] != hard and not may_raise:
            raise ValueError("not allowed to raise maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    raise_locked_memory()
    assert limits[-1] == (after, after)
    assert bool(caplog.messages) is reports
