"""Tests for the journal: what a process leaves, and which versions the next process blames for its end."""

import time
from pathlib import Path

import pytest

from tpuserve_server.core.journal import WINDOW_S, Entry, Journal
from tpuserve_server.core.types import ServableId

A, B = ServableId("a", 1), ServableId("b", 2)


def load(journal: Journal, servable_id: ServableId, fingerprint: str = "f") -> Entry:
    with journal.loading(servable_id, fingerprint) as entry:
        return entry


def blamed(folder: Path, how: str, *servable_ids: ServableId) -> list[tuple[str, str]]:
    """End the process of the last journal, and return each version that is blamed, with its activity."""
    journal = Journal.open(folder, how)
    ends = [end for servable_id in servable_ids for end in journal.ends_of(servable_id, "f")]
    return [(end.name, end.activity) for end in ends]


def test_fault_blames_the_running_version_and_no_idle_one(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "")
    load(journal, A).begin_run()
    idle = load(journal, B)
    idle.end_run(idle.begin_run())
    assert blamed(tmp_path, "signal SIGSEGV", A, B) == [("a", "running")]


@pytest.mark.parametrize("runs", [2, 100])
def test_runs_at_the_same_time_count_until_the_last_has_ended(tmp_path: Path, runs: int) -> None:
    entry = load(Journal.open(tmp_path, ""), A)
    first, *others = [entry.begin_run() for _ in range(runs)]
    for mark in others:
        entry.end_run(mark)
    assert blamed(tmp_path, "signal SIGABRT", A) == [("a", "running")]
    entry = load(Journal.open(tmp_path, ""), B)
    for mark in [entry.begin_run() for _ in range(runs)]:
        entry.end_run(mark)
    assert blamed(tmp_path, "signal SIGABRT", B) == []
    assert first.byte >= 0


@pytest.mark.parametrize(
    ("how", "activities"),
    [
        ("signal SIGSEGV", ["loading", "running"]),
        ("exit code 7", ["loading", "running"]),
        ("signal SIGKILL", ["loading"]),
        ("hung run", ["running"]),
        ("lost device", []),
        ("exit code 1", []),
        ("exit code 0", []),
        ("signal SIGTERM", []),
    ],
)
def test_kind_of_end_decides_who_is_blamed(tmp_path: Path, how: str, activities: list[str]) -> None:
    journal = Journal.open(tmp_path, "")
    load(journal, B).begin_run()
    with journal.loading(A, "f"):
        assert [activity for _, activity in blamed(tmp_path, how, A, B)] == activities


def test_ends_add_up_over_processes_and_belong_to_the_files(tmp_path: Path) -> None:
    for how in ("", "signal SIGSEGV"):
        load(Journal.open(tmp_path, how), A).begin_run()
    journal = Journal.open(tmp_path, "signal SIGSEGV")
    assert len(journal.ends_of(A, "f")) == 2
    assert journal.ends_of(A, "repaired") == []
    assert journal.ends_of(ServableId("a", 2), "f") == []


def test_old_ends_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(Journal.open(tmp_path, ""), A).begin_run()
    journal = Journal.open(tmp_path, "signal SIGSEGV")
    assert journal.ends_of(A, "f")
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + WINDOW_S + 1)
    assert journal.ends_of(A, "f") == []


def test_version_that_failed_to_load_or_was_unloaded_is_not_blamed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "")
    with pytest.raises(ZeroDivisionError), journal.loading(A, "f"):
        raise ZeroDivisionError
    unloaded = load(journal, B)
    unloaded.begin_run()
    journal.forget(unloaded)
    assert blamed(tmp_path, "signal SIGSEGV", A, B) == []


def test_name_that_does_not_fit_is_loaded_without_a_record(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, "")
    entry = load(journal, ServableId("n" * 1000, 1))
    entry.begin_run()
    journal.forget(entry)
    assert Journal.open(tmp_path, "signal SIGSEGV").ends_of(ServableId("n" * 1000, 1), "f") == []
