import json
import logging
import subprocess
import sys

from tpuserve_server.command.logs import JsonFormatter


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exception = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord("tpuserve_server.x", logging.ERROR, "x.py", 1, message, arguments, exception)
    made.created = 1_700_000_000.25
    return made


def test_an_event_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record('first "%s"\nsecond', "é"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "ERROR",
        "logger": "tpuserve_server.x",
        "thread": "MainThread",
        "message": 'first "é"\nsecond',
    }


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise ZeroDivisionError("none")
    except ZeroDivisionError as error:
        line = JsonFormatter().format(record("failed", error=error))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ZeroDivisionError: none")


def logged_by_a_process(log_format: str) -> str:
    """Return the standard error of a process that logs a warning. In this process pytest adds its own handlers."""
    program = (
        "import logging; from tpuserve_server.command.logs import configure_logging; "
        f"configure_logging({log_format!r}); logging.getLogger('tpuserve_server.x').warning('here')"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    return run.stderr


def test_the_format_is_chosen() -> None:
    assert json.loads(logged_by_a_process("json"))["message"] == "here"
    assert logged_by_a_process("text").endswith("WARNING tpuserve_server.x: here\n")
