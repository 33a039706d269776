"""Tests for the CPU time and memory of this process."""

from tpuserve_server.core.system.process_usage import cpu_s, resident_bytes


def test_cpu_time_grows() -> None:
    before_s = cpu_s()
    while cpu_s() == before_s:
        sum(range(1000))
    assert cpu_s() > before_s


def test_the_resident_memory_is_that_of_a_process_with_numpy() -> None:
    assert (resident_bytes() or 0) > 10 << 20
