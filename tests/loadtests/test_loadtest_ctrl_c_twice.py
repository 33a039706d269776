"""Tests for a second Ctrl-C while a server hangs: the command reports its results and drops in-flight requests."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving

COMMAND = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tpuserve_loadtests.cli import main; main()",
]
OPTIONS = [*UNRECORDED, "--timeout", "10m", "--warm-up", "0", "--generator-limit", "note", "--json"]
HINT = "Press Ctrl-C again"


def press_twice(process: "subprocess.Popen[str]", server: Doubling, in_flight: int) -> None:
    """Press Ctrl-C when `in_flight` requests are in flight, and again after the hint about a second press."""
    for _ in range(in_flight):
        assert server.hanging.acquire(timeout=120)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any(HINT in line for line in process.stderr)
    process.send_signal(signal.SIGINT)


def started(stack: ExitStack, *arguments: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [*COMMAND, *arguments, *OPTIONS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def test_answers_that_do_not_come_are_not_waited_for_and_what_there_is_is_reported() -> None:
    unwaited = "requests in flight were abandoned"
    # Run all cases at once, each with a server, because their start takes most of the time. The number is a minimum.
    cases = [
        (["run", "--users", "3"], 3, ["interrupted after", f"3 {unwaited}"]),
        (["run", "--users", "3", "--processes", "2"], 3, ["interrupted after", f"3 {unwaited}"]),
        (["run", "--rate", "100", "--arrivals", "constant"], 1, ["interrupted after", unwaited]),
        (["sweep", "--users", "2,4"], 2, ["interrupted after", f"2 {unwaited}"]),
        (["soak", "--users", "2"], 2, ["interrupted after", f"2 {unwaited}"]),
        (["search", "--slo", "p99<=20ms"], 1, ['"problem": "interrupted"']),
        (["compare", "{address}", "{address}"], 1, ['"rounds": 0']),
    ]
    with ExitStack() as stack:
        running = []
        for (command, *options), in_flight, _ in cases:
            server = stack.enter_context(serving(Doubling(hangs=True)))
            place = [] if command == "compare" else ["--grpc", server.grpc_address]
            given = [option.format(address=server.grpc_address) for option in options]
            running.append((started(stack, command, MODEL, *place, *given), server, in_flight))
        with ThreadPoolExecutor(len(running)) as people:
            list(people.map(lambda each: press_twice(*each), running))
        for (process, *_), (*_, words) in zip(running, cases, strict=True):
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 130, errors
            for each in words:
                assert each in output
            assert HINT not in errors  # printed once before
            document = json.loads(output)
            if "total" in document:
                assert (document["total"]["requests"], document["total"]["failures"]) == (0, 0)


def test_pressed_again_and_again_it_does_not_take_the_report_away(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    with serving(Doubling()) as server, ExitStack() as stack:
        options = ["--grpc", server.grpc_address, "--processes", "2", "--duration", "10m", "--html", str(page)]
        process = started(stack, "run", MODEL, *options)
        assert server.reached.wait(60)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert json.loads(output)["notes"][0].startswith("interrupted after ")
    assert page.read_text().rstrip().endswith("</html>")


def test_sigterm_ends_the_requests_before_the_load_and_leaves_no_file_of_an_earlier_run(tmp_path: Path) -> None:
    files = {f"--{name}": tmp_path / name for name in ("junit", "json-file", "html", "csv", "hdr")}
    linked = tmp_path / "linked"
    for name, path in files.items():
        (linked if name == "--html" else path).write_text("passed")
    files["--html"].symlink_to(linked)
    with serving(Doubling(hangs=True)) as server, ExitStack() as stack:
        command = [*COMMAND, "run", MODEL, "--grpc", server.grpc_address, "--timeout", "10m"]
        command += [str(each) for option in files.items() for each in option]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert server.hanging.acquire(timeout=120)  # a response that the command records
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "Interrupted before the load. There is no report.\n")
    assert [path.name for path in tmp_path.iterdir() if path.read_text()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"html", "linked"}


def test_before_there_is_a_load_it_just_ends_the_program() -> None:
    with serving(Doubling()) as server, ExitStack() as stack:
        options = ["--grpc", server.grpc_address, "--remote", "1", "--listen", "127.0.0.1:0"]
        process = started(stack, "run", MODEL, *options)
        assert process.stderr is not None
        assert "Waiting for remote workers (1)" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors == "Interrupted before the load. There is no report.\n"
