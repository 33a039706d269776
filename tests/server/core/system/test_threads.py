import ctypes
import os
import platform
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpuserve_server.core.system.threads import JobThreads, name_thread, run_in_background


@dataclass(eq=False)
class HeldJob:
    """A job that ends when its gate opens."""

    gate: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def run(self) -> None:
        self.thread = threading.current_thread()
        self.began.set()
        assert self.gate.wait(10)
        self.ended.set()


def submit(threads: JobThreads, count: int) -> list[HeldJob]:
    jobs = [HeldJob() for _ in range(count)]
    for job in jobs:
        threads.submit(job)
    return jobs


def test_as_many_jobs_run_at_a_time_as_there_are_threads() -> None:
    threads = JobThreads(2)
    first, second, third = submit(threads, 3)
    assert first.began.wait(10)
    assert second.began.wait(10)
    assert not third.began.is_set()
    first.gate.set()
    assert third.began.wait(10)
    second.gate.set()
    third.gate.set()
    threads.stop()


def test_a_job_that_is_given_up_leaves_its_place_to_the_next() -> None:
    threads = JobThreads(1)
    hung, second, third = submit(threads, 3)
    assert hung.began.wait(10)
    threads.give_up(hung)
    assert second.began.wait(10)
    # The end of the job that was given up frees no further place.
    hung.gate.set()
    assert hung.ended.wait(10)
    assert not third.began.is_set()
    second.gate.set()
    assert third.began.wait(10)
    third.gate.set()
    threads.stop()


def test_a_stop_waits_for_running_jobs_and_takes_no_more() -> None:
    threads = JobThreads(1)
    (running,) = submit(threads, 1)
    assert running.began.wait(10)
    stopping = threading.Thread(target=threads.stop)
    stopping.start()
    running.gate.set()
    stopping.join()
    assert running.ended.is_set()
    (late,) = submit(threads, 1)
    assert not late.began.is_set()


def test_a_stop_does_not_wait_for_a_job_that_is_given_up_meanwhile() -> None:
    threads = JobThreads(1)
    (hung,) = submit(threads, 1)
    assert hung.began.wait(10)
    stopping = threading.Thread(target=threads.stop)
    stopping.start()
    threads.give_up(hung)
    stopping.join()
    hung.gate.set()


def test_idle_threads_take_the_next_jobs() -> None:
    threads = JobThreads(3)
    used = set[threading.Thread | None]()
    for _ in range(20):
        (job,) = submit(threads, 1)
        job.gate.set()
        assert job.ended.wait(10)
        used.add(job.thread)
    threads.stop()
    assert len(used) <= 3


def test_a_stop_does_not_wait_without_end_for_a_job_that_hangs() -> None:
    threads = JobThreads(1, stop_patience_s=0.01)
    (hung,) = submit(threads, 1)
    assert hung.began.wait(10)
    threads.stop()
    assert not hung.ended.is_set()
    hung.gate.set()


def test_a_finish_runs_the_queue_first() -> None:
    threads = JobThreads(1)
    first, second = submit(threads, 2)
    first.gate.set()
    second.gate.set()
    threads.finish()
    assert second.ended.is_set()


_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def test_the_result_comes_from_a_named_thread() -> None:
    assert run_in_background(lambda: threading.current_thread().name, "load") == "load"


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    error = KeyError("x")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        run_in_background(fail, "load")
    assert caught.value is error


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_the_kernel_serves_it_after_the_threads_that_answer_requests() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = niceness()
    assert run_in_background(niceness, "load") == max(own, 10)
    assert niceness() == own


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _SCHED_GETATTR or _kernel() < (6, 12),
    reason="Linux 6.12 is the first whose threads have slices of their own",
)
def test_whoever_answers_requests_need_not_wait_for_the_end_of_its_slice() -> None:
    def slice_ns() -> int:
        attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
        assert ctypes.CDLL(None).syscall(_SCHED_GETATTR[platform.machine()], 0, attributes, _SCHED_ATTR.size, 0) == 0
        return int(_SCHED_ATTR.unpack(attributes.raw)[5])

    own = slice_ns()
    assert run_in_background(slice_ns, "load") > 10 * own
    assert slice_ns() == own


def test_where_the_system_refuses_niceness_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("seccomp")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert run_in_background(lambda: "done", "load") == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps names of threads on Linux")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("device-digits-1", "device-digits-1"),
        ("device-recommender-12", "device-recommen"),
        # A character of two bytes would be cut in two.
        ("device-digits-ä", "device-digits-"),
    ],
)
def test_the_kernel_keeps_the_beginning_of_a_threads_name(name: str, expected: str) -> None:
    found: list[str] = []

    def run() -> None:
        name_thread()
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        found.append(comm.read_text().rstrip("\n"))

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    assert found == [expected]
