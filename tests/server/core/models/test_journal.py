"""Tests for the journal: what a process leaves, and which versions or forms the next process blames for its end."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.fake_device import FakeClock
from tpuserve_server.core.models.ends import VERSION_PAUSES_S, WINDOW_S
from tpuserve_server.core.models.journal import Entry, Journal
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, Quarantined
from tpuserve_server.core.terms.types import ServableId

A, B = ServableId("a", 1), ServableId("b", 2)
CLOCK = FakeClock()
FAULT = "signal SIGABRT"


def open_journal(folder: Path, last_end: str = "", clock: FakeClock = CLOCK) -> Journal:
    return Journal.open(folder, last_end, clock)


def load(journal: Journal, servable_id: ServableId = A, fingerprint: str = "f") -> Entry:
    with journal.loading(servable_id, fingerprint) as entry:
        return entry


def complete(entry: Entry, form: str) -> None:
    entry.end_form(entry.begin_form(form, is_trial=False), form, completed=True)


def blamed(folder: Path, how: str, *servable_ids: ServableId) -> list[tuple[str, str]]:
    """End the process of the last journal, and return each version that is blamed, with its activity."""
    journal = open_journal(folder, how)
    ends = [end for servable_id in servable_ids for end in journal.ends_of(servable_id, "f")]
    return [(end.name, end.form or end.activity) for end in ends]


def test_fault_blames_the_running_version_and_no_idle_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    load(journal, A).begin_run()
    idle = load(journal, B)
    idle.end_run(idle.begin_run())
    assert blamed(tmp_path, "signal SIGSEGV", A, B) == [("a", "running")]


@pytest.mark.parametrize("runs", [2, 100])
def test_runs_at_the_same_time_count_until_the_last_has_ended(tmp_path: Path, runs: int) -> None:
    entry = load(open_journal(tmp_path), A)
    first, *others = [entry.begin_run() for _ in range(runs)]
    for mark in others:
        entry.end_run(mark)
    assert blamed(tmp_path, "signal SIGABRT", A) == [("a", "running")]
    entry = load(open_journal(tmp_path), B)
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
    journal = open_journal(tmp_path)
    load(journal, B).begin_run()
    with journal.loading(A, "f"):
        assert [activity for _, activity in blamed(tmp_path, how, A, B)] == activities


def test_ends_add_up_over_processes_and_belong_to_the_files(tmp_path: Path) -> None:
    for how in ("", "signal SIGSEGV"):
        load(open_journal(tmp_path, how)).begin_run()
    journal = open_journal(tmp_path, "signal SIGSEGV")
    assert len(journal.ends_of(A, "f")) == 2
    assert journal.ends_of(A, "repaired") == []
    assert journal.ends_of(ServableId("a", 2), "f") == []


def test_version_comes_back_after_a_pause_with_one_try_as_a_suspect(tmp_path: Path) -> None:
    clock = FakeClock()
    for how in ("", FAULT):
        load(open_journal(tmp_path, how, clock)).begin_run()
    for pause_s in (300, 600, 1200):
        journal = open_journal(tmp_path, FAULT, clock)
        with pytest.raises(Quarantined) as quarantined, journal.loading(A, "f"):
            pass
        assert quarantined.value.retry_after_s == pause_s
        assert not load(journal, A, "repaired").is_suspect
        assert not load(journal, B).is_suspect
        clock.advance(pause_s)
        entry = load(journal)
        assert entry.is_suspect
        entry.begin_run()
    assert pause_s < VERSION_PAUSES_S[1]


def test_suspect_that_behaves_is_none_after_the_window(tmp_path: Path) -> None:
    clock = FakeClock()
    load(open_journal(tmp_path, "", clock)).begin_run()
    journal = open_journal(tmp_path, FAULT, clock)
    assert load(journal).is_suspect
    clock.advance(WINDOW_S + 1)
    assert not load(journal).is_suspect


def test_new_form_alone_is_blamed_and_refused_from_then_on(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    entry, other = load(journal), load(journal, B)
    complete(entry, "known")
    entry.begin_form("known", is_trial=False)
    other.begin_run()
    entry.begin_form("new", is_trial=False)
    journal = open_journal(tmp_path, FAULT)
    assert [(end.name, end.form, end.is_sure) for end in journal.ends_of(A, "f")] == [("a", "new", True)]
    assert journal.ends_of(B, "f") == []
    entry = load(journal)
    assert not entry.is_suspect
    with pytest.raises(InvalidArgument, match=r"Model a version 1 refuses new: .* ended the server's process"):
        entry.begin_form("new", is_trial=False)
    complete(entry, "another")
    assert entry.ends.describe_refusals() == "refuses new: a run ended the server's process (signal SIGABRT)"


def test_form_that_hung_is_refused_without_blame_of_loads(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    load(journal).begin_form("new", is_trial=False)
    with journal.loading(B, "f"):
        assert blamed(tmp_path, "hung run", A, B) == [("a", "new")]


def test_known_forms_and_trials_blame_the_version(tmp_path: Path) -> None:
    """A form of another process is known, too."""
    complete(load(open_journal(tmp_path)), "known")
    load(open_journal(tmp_path, "exit code 1")).begin_form("known", is_trial=False)
    assert blamed(tmp_path, FAULT, A) == [("a", "running")]
    load(open_journal(tmp_path), B).begin_form("new", is_trial=True)
    assert blamed(tmp_path, FAULT, B) == [("b", "running")]


def test_form_of_a_failed_run_stays_new_and_is_not_blamed_later(tmp_path: Path) -> None:
    entry = load(open_journal(tmp_path))
    entry.end_form(entry.begin_form("odd", is_trial=False), "odd", completed=False)
    assert blamed(tmp_path, FAULT, A) == []
    load(open_journal(tmp_path)).begin_form("odd", is_trial=False)
    assert blamed(tmp_path, FAULT, A) == [("a", "odd")]


@pytest.mark.parametrize("how", ["two forms", "a load", "signal SIGKILL"])
def test_form_that_may_be_innocent_is_refused_after_the_second_time(tmp_path: Path, how: str) -> None:
    loads = list[AbstractContextManager[Entry]]()
    for number in range(3):
        journal = open_journal(tmp_path, ("signal SIGKILL" if how == "signal SIGKILL" else FAULT) if number else "")
        entry = load(journal)
        if number < 2:
            entry.begin_form("new", is_trial=False)
            if how == "two forms":
                entry.begin_form(f"other {number}", is_trial=False)
            if how == "a load":
                loads.append(journal.loading(B, "f"))
                loads[-1].__enter__()
    with pytest.raises(InvalidArgument):
        entry.begin_form("new", is_trial=False)
    complete(entry, "other 0")
    # The load is innocent.
    assert journal.ends_of(B, "f") == []


def test_version_under_attack_runs_only_known_forms_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    entry = load(open_journal(tmp_path, "", clock))
    complete(entry, "known")
    for number in range(4):
        complete(entry, f"known {number}")
        entry.begin_form(f"odd {number}", is_trial=False)
        clock.advance(60)
        entry = load(open_journal(tmp_path, FAULT, clock))
    with pytest.raises(FailedPrecondition, match="refuses odd 4: it has not run these input shapes before"):
        entry.begin_form("odd 4", is_trial=False)
    complete(entry, "known")
    complete(entry, "known 3")
    assert "; runs only input shapes that it has run before until 2" in entry.ends.describe_refusals()
    clock.advance(WINDOW_S)
    complete(entry, "odd 4")


@pytest.mark.parametrize(
    "ends",
    [
        b'[{"name": 1}',
        b"[{}]",
        b"{",
        b"\xff",
        b'[{"name":"a","version":1,"fingerprint":"f","activity":"","how":"","at_s":""}]',
    ],
)
def test_damaged_files_do_not_stop_the_next_start(tmp_path: Path, ends: bytes) -> None:
    journal = open_journal(tmp_path)
    load(journal).begin_run()
    load(journal, B).begin_form("new", is_trial=False)
    for name in ("journal.bin", "forms.bin"):
        (tmp_path / name).write_bytes(b"\xff" * 100_000)
    (tmp_path / "journal.json").write_bytes(ends)
    assert blamed(tmp_path, FAULT, A, B) == []


def test_files_are_bounded(tmp_path: Path) -> None:
    clock = FakeClock()
    for number in range(30):
        entry = load(open_journal(tmp_path, FAULT if number else "", clock), ServableId("n" * 300, number))
        for form in range(200):
            complete(entry, f"form {form} {'x' * 300}")
        for form in range(40):
            entry.begin_form(f"odd {number} {form}{'x' * 300}", is_trial=False)
    open_journal(tmp_path, FAULT, clock)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5 << 20


def test_version_that_failed_to_load_or_was_unloaded_is_not_blamed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ZeroDivisionError), journal.loading(A, "f"):
        raise ZeroDivisionError
    unloaded = load(journal, B)
    unloaded.begin_run()
    journal.forget(unloaded)
    assert blamed(tmp_path, "signal SIGSEGV", A, B) == []


def test_name_that_does_not_fit_is_loaded_without_a_record(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    entry = load(journal, ServableId("n" * 1000, 1))
    entry.begin_run()
    journal.forget(entry)
    assert open_journal(tmp_path, "signal SIGSEGV").ends_of(ServableId("n" * 1000, 1), "f") == []
