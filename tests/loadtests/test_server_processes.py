"""Tests for CPU and memory of the server's processes, against figures that real processes report about themselves."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from rich.console import Console

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.loadtests.metrics_pages import seen_server
from tests.loadtests.recorded_runs import open_load, recorded_run
from tests.support import forked_command
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.monitoring.process_use import NoProcess, ProcessTree, Sample, join_uses, read_use
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.run import run_report

MIB = 2**20
# A process whose child uses 0.3 s of CPU and ends. Then the process uses 0.3 s and allocates memory. After each step it
# prints its CPU time with that of its child, and waits.
WORK = """
import resource, subprocess, sys, time
def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
def report():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(each.ru_utime + each.ru_stime for each in used), flush=True)
    sys.stdin.readline()
report()
burning = "import time\\nwhile time.process_time() < 0.3: pass"
subprocess.run([sys.executable, "-S", "-c", burning], check=True)
report()
burn()
held = bytearray(64 * 2**20)
report()
with subprocess.Popen(["sleep", "100"]) as child:
    report()
    child.kill()
"""
CLOCK_TICKS_S = 0.06  # four times are rounded to 10 ms
QUIET = (*UNRECORDED, "--generator-limit", "note", "--server-metrics", "off", "--warm-up", "0")


class Work:
    """A process that works step by step."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def cpu_s(self) -> float:
        """Wait for the end of a step and return the CPU time so far."""
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def working() -> Iterator[Work]:
    command = [sys.executable, "-c", WORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Work(process)
        finally:
            process.kill()


def sampled(tree: ProcessTree) -> Sample:
    sample = tree.sample(0.0)
    assert sample is not None
    return sample


def test_cpu_and_memory_are_those_that_the_process_reports() -> None:
    with working() as work:
        tree = ProcessTree([work.process.pid])
        samples, expected = [], []
        for _ in range(4):
            expected.append(work.cpu_s())
            samples.append(sampled(tree))
            work.go_on()
        assert [sample.cpu_s for sample in samples] == pytest.approx(expected, abs=CLOCK_TICKS_S)
        assert expected[2] - expected[0] > 0.5
        assert samples[2].memory_bytes - samples[1].memory_bytes >= 60 * MIB
        assert [sample.processes for sample in samples] == [1, 1, 1, 2]


def test_a_process_that_ended_has_no_sample() -> None:
    with working() as work:
        tree = ProcessTree([work.process.pid])
        work.process.kill()
        work.process.wait()
    assert tree.sample(0.0) is None
    with pytest.raises(NoProcess, match=f"No process with id {work.process.pid} runs on this machine"):
        ProcessTree([work.process.pid])


def test_the_use_lies_between_the_first_and_the_last_sample() -> None:
    samples = [Sample(0.0, 10.0, 5 * MIB, 1), Sample(1.0, 12.0, 9 * MIB, 3), Sample(4.0, 13.0, 7 * MIB, 2)]
    use = read_use((4,), samples)
    assert use is not None
    assert (use.cpu_cores, use.seconds, use.processes) == (0.75, 4.0, 3)
    assert (use.memory_bytes, use.peak_memory_bytes) == (7 * MIB, 9 * MIB)
    assert [moment.cpu_cores for moment in use.timeline] == [2.0, pytest.approx(1 / 3)]
    assert read_use((4,), samples[:1]) is None


def test_several_runs_have_the_mean_cores_and_the_highest_memory() -> None:
    long = read_use((4,), [Sample(0.0, 0.0, 9 * MIB, 1), Sample(3.0, 3.0, 8 * MIB, 1)])
    short = read_use((4,), [Sample(0.0, 3.0, 5 * MIB, 2), Sample(1.0, 8.0, 6 * MIB, 2)])
    assert long is not None
    assert short is not None
    both = join_uses([long, short])
    assert both is not None
    assert (both.cpu_cores, both.processes, both.timeline) == (2.0, 2, ())
    assert (both.memory_bytes, both.peak_memory_bytes) == (6 * MIB, 9 * MIB)
    assert join_uses([]) is None


@pytest.mark.parametrize("has_metrics", [True, False])
def test_terminal_page_and_json_show_the_processes(has_metrics: bool) -> None:
    seen = seen_server(800) if has_metrics else Seen(note="no server metrics: none")
    seen.use = read_use((4242,), [Sample(second, 1.5 * second, (100 + second) * MIB, 3) for second in range(9)])
    report = run_report(judge_run(recorded_run(open_load(100)), model="m", rows=1, seen=seen), {})
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    line = "server process 4242 and 2 child processes: 1.50 cores, peak memory 108 MiB, 108 MiB at the end"
    assert f"  {line}\n" in console.file.getvalue()
    page = render_page(report.page())
    assert line in page
    assert "Server processes over time" in page
    assert ("No server metrics: none" in page) is not has_metrics
    document = json.loads(json.dumps(report.document()))["server_process"]
    assert document["pids"] == [4242]
    assert document["cpu_cores"] == 1.5
    assert len(document["timeline"]) == 8


def test_a_run_measures_the_process_of_the_server() -> None:
    with serving(Doubling()) as server, working() as work:
        work.cpu_s()
        options = ("--grpc", server.grpc_address, "--users", "2", "--duration", "1500ms", *QUIET)
        pid = ("--server-pid", str(work.process.pid))
        ended = forked_command.run("tpuserve-loadtest", "run", MODEL, *options, *pid, "--json")
    assert ended.returncode == 0, ended.stderr
    use = json.loads(ended.stdout)["server_process"]
    assert use["pids"] == [work.process.pid]
    assert use["processes"] == 1
    assert use["seconds"] >= 1.5
    assert use["cpu_cores"] < 0.1  # it waits
    assert 1 * MIB < use["memory_bytes"] < 100 * MIB


def test_a_process_that_ends_during_the_load_is_a_note() -> None:
    """Kill the process as soon as the server received a request of the load."""
    with serving(Doubling()) as server, working() as work, ThreadPoolExecutor(1) as thread:

        def kill_after_first_request() -> None:
            assert server.reached.wait(100)
            work.process.kill()

        thread.submit(kill_after_first_request)
        options = ("--grpc", server.grpc_address, "--users", "1", "--duration", "500ms", *QUIET)
        pid = ("--server-pid", str(work.process.pid))
        ended = forked_command.run("tpuserve-loadtest", "run", MODEL, *options, *pid, "--json")
    report = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    assert report["notes"][-1] == f"the server process {work.process.pid} ended during the load"
    assert report["server_process"] is None


def test_an_unknown_process_is_a_usage_error() -> None:
    with working() as work:
        work.process.kill()
    with serving(Doubling()) as server:
        pid = ("--server-pid", str(work.process.pid))
        ended = forked_command.run("tpuserve-loadtest", "run", MODEL, "--grpc", server.grpc_address, *pid)
    assert ended.returncode == 2
    assert f"No process with id {work.process.pid} runs on this machine" in ended.stderr
