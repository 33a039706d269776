"""Tests for the arrivals of an open load that a gate or Ctrl-C stops."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.late_watch import BLOCKED

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def stopped(server: Doubling, grace: str) -> dict[str, int]:
    """Stop a load after its watcher blocked the process for BLOCKED arrivals. Return the counts of arrivals."""
    command = [sys.executable, "-m", "tests.loadtests.late_watch", server.rest_url, MODEL, grace]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    counts: dict[str, int] = json.loads(run.stdout)
    return counts


def test_arrivals_that_become_due_while_the_watcher_runs_are_sent_and_not_dropped(server: Doubling) -> None:
    counts = stopped(server, "default")
    assert counts["dropped"] == 0
    # Each arrival until the stop is a request, and no later one is.
    assert counts["requests"] == counts["due"] == len(server.rows)
    assert counts["due"] > BLOCKED


def test_arrivals_that_the_dispatcher_has_no_time_to_send_are_dropped(server: Doubling) -> None:
    counts = stopped(server, "none")
    assert counts["dropped"] >= BLOCKED
    assert counts["requests"] + counts["unanswered"] + counts["dropped"] == counts["due"]
