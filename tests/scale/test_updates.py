"""Updates of a model with half a gigabyte of weights, in a control group with a limit where the system allows one."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.memory import updates
from tests.e2e.running_server import EXECUTABLE

MEGABYTES = 512
LIMIT_BYTES = 3 * 2**29
# Directories of the memory controllers of versions 2 and 1, and their files with the limit.
CGROUPS = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))


def limited() -> tuple[Path | None, Sequence[str]]:
    """Return a control group with a limit and a command that runs the server in it, or neither if not allowed."""
    for root, limit in CGROUPS:
        group = Path(root, f"tpuserve-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            group.mkdir()
            # Another file system may be there, whose directories are no groups.
            if (group / limit).exists():
                (group / limit).write_text(str(LIMIT_BYTES))
                return group, ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec {EXECUTABLE} "$@"', "sh")
        with contextlib.suppress(OSError):
            group.rmdir()
    return None, ()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_updates_need_the_memory_of_two_versions(tmp_path: Path) -> None:
    template = updates.write_model(tmp_path / "template", MEGABYTES, tmp_path)
    group, program = limited()
    try:
        # It raises an error if an update is refused.
        found = updates.measure("tpuserve", template, MEGABYTES, 10, tmp_path, program)
    finally:
        if group is not None:
            group.rmdir()
    assert found.peak_mb < 2 * found.weights_mb + updates.REST_MB
    for load in found.loads:
        assert load.rss_mb < found.weights_mb + updates.REST_MB
