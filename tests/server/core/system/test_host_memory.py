import threading
from pathlib import Path

import pytest

from tpuserve_server.core.system.host_memory import HostMemory, total_size
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
