"""Tests of a process that may end, in a process without threads."""

import subprocess
import sys

from tests.deploy.dockerfile import ROOT

SCRIPT = """
import os
import signal
import threading

from tests.zoo.fork import Ended, Fork, Hung


def answer(message):
    if message == "end":
        os.kill(os.getpid(), signal.SIGABRT)
    if message == "hang":
        threading.Event().wait()
    return message, os.getpid()


def fail():
    raise ValueError("cannot start")


with Fork(lambda: answer) as process:
    echo, first = process.ask("a", 60)
    assert (echo, first) == ("a", process.ask("b", 60)[1]) and first != os.getpid()
    for message, kind in (("end", Ended), ("hang", Hung)):
        try:
            process.ask(message, 0.2 if message == "hang" else 60)
        except kind as error:
            print(kind.__name__, error)
    assert process.ask("c", 60)[1] != first
try:
    Fork(fail).ask("a", 60)
except ValueError as error:
    print(error)
"""


def test_end_and_hang_are_reported_and_the_next_message_starts_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "Ended SIGABRT\nHung \ncannot start\n", done.stderr
