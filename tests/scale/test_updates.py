"""Updates of a model with half a gigabyte of weights, in a control group with a limit where the system allows one."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.memory import updates
from tests.e2e.running_server import EXECUTABLE

MEGABYTES = 512
LIMIT_BYTES = 3 * 2**29
# Directories of the memory controllers of versions 2 and 1, and their files with the limit.
CGROUPS = (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))


@contextlib.contextmanager
def limited() -> Iterator[Sequence[str]]:
    """Yield a command that runs the server in a control group with a limit, or without one if that is not allowed."""
    for root, limit in CGROUPS:
        group = Path(root, f"tpuserve-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT_BYTES))
            yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec {EXECUTABLE} "$@"', "sh")
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    yield ()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_updates_need_the_memory_of_two_versions(tmp_path: Path) -> None:
    template = updates.write_model(tmp_path / "template", MEGABYTES, tmp_path)
    with limited() as program:
        # It raises an error if an update is refused.
        found = updates.measure("tpuserve", template, MEGABYTES, 10, tmp_path, program)
    assert found.peak_mb < 2 * found.weights_mb + updates.REST_MB
    for load in found.loads:
        assert load.rss_mb < found.weights_mb + updates.REST_MB
