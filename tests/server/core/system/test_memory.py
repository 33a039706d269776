import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tpuserve_server.core.system.memory import HostMemory, settle_garbage_collector, total_size
from tpuserve_server.core.terms.errors import ResourceExhausted

GIB = 2**30


def write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def make_memory(root: Path, *, available_gib: int = 8, patience_s: float = 60) -> HostMemory:
    write(
        root, "proc/meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {available_gib * 2**20} kB\nHugePages_Total: 0\n"
    )
    return HostMemory(root, patience_s=patience_s)


def test_this_machine_reports_its_memory() -> None:
    free_bytes = HostMemory().free_bytes()
    assert free_bytes is None or free_bytes > 0


def test_the_limit_of_a_container_counts_without_the_page_cache(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "5\n")
    assert memory.free_bytes() == 8 * GIB
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", f"{3 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", f"anon {GIB}\ninactive_file {GIB}\nactive_file 7\n")
    assert memory.free_bytes() == 2 * GIB + 7


def test_the_limit_of_a_service_and_of_the_groups_around_it_counts(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    write(tmp_path, "proc/self/cgroup", "1:name=systemd:/\n0::/system.slice/tpuserve.service\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/tpuserve.service/memory.max", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/tpuserve.service/memory.current", f"{GIB}\n")
    assert memory.free_bytes() == 3 * GIB
    write(tmp_path, "sys/fs/cgroup/system.slice/memory.max", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/system.slice/memory.current", f"{2 * GIB}\n")
    assert memory.free_bytes() == 2 * GIB


def test_a_container_of_version_1_counts(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{3 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.stat", "total_inactive_file 9\n")
    assert memory.free_bytes() == GIB + 9


def test_a_service_of_version_1_counts(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    write(tmp_path, "proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/system.slice/tpuserve.service\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/system.slice/tpuserve.service/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/system.slice/tpuserve.service/memory.usage_in_bytes", f"{GIB}\n")
    assert memory.free_bytes() == 3 * GIB


def test_caches_of_the_file_system_can_be_reclaimed(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", f"{3 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", "slab_reclaimable 9\n")
    assert memory.free_bytes() == GIB + 9


def test_a_load_can_use_what_the_process_has_freed(tmp_path: Path) -> None:
    def release() -> None:
        make_memory(tmp_path, available_gib=12)

    make_memory(tmp_path, available_gib=4)
    memory = HostMemory(tmp_path, release_freed=release)
    with memory.reserve(4 * GIB):
        assert memory.free_bytes() == 4 * GIB
    with memory.reserve(8 * GIB):
        assert memory.free_bytes() == 12 * GIB


def test_files_larger_than_the_free_memory_are_refused(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    message = r"^the files to load have 10240\.0 GiB, and 8\.0 GiB of memory are free$"
    with pytest.raises(ResourceExhausted, match=message), memory.reserve(10 * 2**40):
        pass
    with memory.reserve(8 * GIB):
        pass


def test_a_system_without_a_report_refuses_nothing(tmp_path: Path) -> None:
    with HostMemory(tmp_path).reserve(2**60):
        pass


def test_a_load_waits_for_another_that_needs_the_memory(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    began, second = threading.Event(), threading.Event()

    def load() -> None:
        began.set()
        with memory.reserve(6 * GIB):
            second.set()

    with memory.reserve(6 * GIB):
        thread = threading.Thread(target=load)
        thread.start()
        assert began.wait(10)
        assert not second.is_set()
    thread.join()
    assert second.is_set()


def test_a_load_that_hangs_is_not_waited_for_without_end(tmp_path: Path) -> None:
    memory = make_memory(tmp_path, patience_s=0.01)
    with memory.reserve(6 * GIB), memory.reserve(6 * GIB):
        pass


def test_sizes_of_files_and_folders_add_up(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    for name, size in (("saved_model.pb", 3), ("variables/a", 4), ("variables/b", 2**43)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert total_size(tmp_path / "saved_model.pb", tmp_path / "variables", tmp_path / "absent") == 7 + 2**43


# Threads free 100 MB twice. The second time needs no new pages, because the heap has kept those of the first.
PROGRAM = """
import os, resource, sys, threading
from tpuserve_server.core.system.memory import keep_freed_memory, trim_memory
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


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="glibc on Linux")
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


# A version's weights: 100 MB that outlive the block, freed after it.
MAPPING_PROGRAM = """
import resource
from tpuserve_server.core.system.memory import keep_freed_memory, mapping_allocations
keep_freed_memory()
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 1e6
with mapping_allocations():
    weights = bytearray(b"x") * 100_000_000
    others = bytearray(b"x") * 100_000_000
del weights
freed_mb = resident_mb()
others = bytearray(b"x") * 100_000_000
batch = bytearray(b"x") * 100_000_000
del batch
print(freed_mb < 150, resident_mb() > 190)
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="glibc on Linux")
def test_weights_return_to_the_system_when_they_are_freed() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", MAPPING_PROGRAM]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True True"


def test_what_is_there_at_the_start_is_never_collected_again() -> None:
    thresholds = gc.get_threshold()
    try:
        # The default of Python 3.11 and 3.12. Python 3.13's default is the server's setting.
        gc.set_threshold(700, 10, 10)
        settle_garbage_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > 700
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as tests/conftest.py does
        gc.set_threshold(*thresholds)
