"""Tests of logging in real processes, because pytest adds its own handlers to this one."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

PREAMBLE = """
import logging, sys, threading, warnings
from tpuserve_server.observe.logs.configuration import configure_logging
configure_logging(sys.argv[1])
log = logging.getLogger("tpuserve_server.x")
"""
EVENTS = """
log.warning("first %s\\nsecond", "é", extra={"fields": {"model": "m", "stages_ms": {"queue": 1.5}, "none": None}})
logging.getLogger("tpuserve").error("cannot listen")
warnings.warn("old")
try:
    raise ZeroDivisionError("none\\nat all")
except ZeroDivisionError:
    log.exception("failed")
thread = threading.Thread(target=lambda: {}["missing"], name="worker")
thread.start()
thread.join()
raise LookupError("the end")
"""
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def logged(program: str, log_format: str = "text", **environment: str) -> str:
    """Return the stderr of a process that runs the program."""
    command = [sys.executable, "-W", "always", "-c", PREAMBLE + program, log_format]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
    assert run.stdout == ""
    return run.stderr


def on_terminal(program: str, **environment: str) -> str:
    """Return the output on a terminal of a process that runs the program with `auto`."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PREAMBLE + program, "auto"]
    with open(ours, "rb", buffering=0) as terminal, open(theirs, "wb", buffering=0) as end:
        subprocess.run(command, stderr=end, env={**os.environ, **environment}, check=True, timeout=60)
        os.set_blocking(ours, False)
        return (terminal.read() or b"").decode()


def test_every_event_is_one_line_of_json() -> None:
    warning, command, old, failed, thread, end = map(json.loads, logged(EVENTS, "json").splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", warning.pop("time"))
    assert warning == {
        "level": "WARNING",
        "logger": "tpuserve_server.x",
        "thread": "MainThread",
        "message": "first é\nsecond",
        "model": "m",
        "stages_ms": {"queue": 1.5},
    }
    assert command["message"] == "cannot listen"
    assert "UserWarning: old" in old["message"]
    assert failed["exception"].endswith("ZeroDivisionError: none\nat all")
    assert thread["message"] == "Uncaught exception in thread worker"
    assert thread["exception"].endswith("KeyError: 'missing'")
    assert (end["level"], end["message"]) == ("CRITICAL", "Uncaught exception")


def test_a_line_of_text_begins_with_its_time_and_further_lines_with_spaces() -> None:
    lines = logged(EVENTS).splitlines()
    assert re.fullmatch(
        rf'{_TIME},\d{{3}} WARNING tpuserve_server\.x: first é\\nsecond model=m stages_ms={{"queue":1.5}}', lines[0]
    )
    assert lines[1] == "tpuserve: cannot listen"
    assert all(re.match(rf"{_TIME},|    ", line) for line in lines[2:])
    assert "    ZeroDivisionError: none" in lines
    assert "    at all" in lines


def test_auto_is_text_without_a_terminal_and_colors_on_one() -> None:
    program = "log.warning('here', extra={'fields': {'model': 'a b'}})"
    assert logged(program, "auto").endswith('WARNING tpuserve_server.x: here model="a b"\n')
    colored = on_terminal(program, NO_COLOR="")
    assert "\x1b[" in colored
    plain = re.sub(r"\x1b\[\d+m", "", colored)
    assert re.fullmatch(rf"{_TIME} \[warning  \] here \[tpuserve_server\.x\] model='a b'\r\n", plain)
    assert "\x1b" not in on_terminal(program, NO_COLOR="1")


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 3), ("INFO", 2), ("ERROR", 0)])
def test_the_level_is_of_the_environment(level: str, count: int) -> None:
    program = "log.debug('a'); log.info('b'); log.warning('c')"
    assert len(logged(program, TPUSERVE_LOG_LEVEL=level).splitlines()) == count


def test_repeats_are_summarized_at_the_end_but_none_of_a_critical_event() -> None:
    lines = logged("for n in range(500): log.error('again %d', n); log.critical('fatal')").splitlines()
    assert sum("again" in line for line in lines) == 11
    assert lines[-1].endswith('ERROR tpuserve_server.x: "again %d" repeated 490 more times in 60 s')
    assert sum("CRITICAL" in line for line in lines) == 500


def test_a_second_configuration_changes_nothing() -> None:
    assert len(logged("configure_logging('json'); log.warning('once')").splitlines()) == 1


def test_a_process_without_stderr_logs_nowhere() -> None:
    command = [sys.executable, "-c", PREAMBLE + "log.warning('here'); print('alive')", "text"]
    run = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], capture_output=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, b"alive\n")


def test_the_console_needs_no_rich() -> None:
    """The supervisor would start later."""
    assert logged("assert not {'rich', 'structlog.twisted', 'tensorflow'} & set(sys.modules)") == ""
