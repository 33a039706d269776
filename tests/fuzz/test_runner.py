"""The runner's table, and the sessions that it starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.outcome import Outcome, table
from tests.fuzz.sessions import SESSIONS, Folders
from tests.fuzz.shared_counts import SharedCounts, read_counts
from tests.fuzz.targets import PARSERS

FINDING = "tests.fuzz.target.Finding: only one reading refuses the body"
LOG = f"""#2 NEW cov: 9 ft: 41
#5 DONE cov: 12 ft: 1050 corp: 4
{FINDING}
==7== ERROR: libFuzzer: fuzz target exited
"""


def test_outcome_shows_counts_coverage_and_the_finding(tmp_path: Path) -> None:
    counts = SharedCounts.create(tmp_path / "counts")
    for is_accepted in (True, False, False, True):
        counts.add(is_accepted=is_accepted)
    (tmp_path / "log").write_text(LOG)
    failed = Outcome.read("routes", 2.0, 77, tmp_path / "log", tmp_path / "counts")
    assert failed.cells() == ("routes", "4", "2", "50%", "1,050", FINDING)
    passed = Outcome.read("routes", 2.0, 0, tmp_path / "log", tmp_path / "counts")
    assert table([passed]).splitlines()[1].split() == ["routes", "4", "2", "50%", "1,050", "none"]


def test_session_without_a_last_word_has_its_status_as_finding(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    outcome = Outcome.read("routes", 2.0, -9, tmp_path / "log", tmp_path / "counts")
    assert (outcome.finding, outcome.executions) == ("exit status -9", 0)
    assert read_counts(tmp_path / "counts") == (0, 0)


def test_every_session_has_a_command_with_its_folders() -> None:
    at = Folders(Path("kept"), Path("findings"), Path("counts"))
    assert SESSIONS.keys() > PARSERS.keys()
    for command in SESSIONS.values():
        words = command(7, at)
        assert {"7", "findings", "counts"} <= set(words)


def test_unknown_target_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["route"])
    assert "unknown target route. Targets are tensor_proto" in capsys.readouterr().err


def test_memory_limit_names_the_size_of_an_input(tmp_path: Path) -> None:
    # A child of a shell: Linux passes the peak of this process to the programs that it starts (exec_mmap, fs/exec.c).
    target = [sys.executable, "-m", "tests.fuzz.greedy_target", str(tmp_path / "counts")]
    run = ["sh", "-c", '"$@"; exit $?', "sh", *target]
    result = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "Finding: 1 bytes take" in result.stderr
