import threading
from dataclasses import dataclass, field

from tpuserve_server.core.system.job_threads import JobThreads


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
