"""Tests for the executor that records loads and runs: it forwards everything, and quarantines versions."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.fake_device import FakeServable
from tpuserve_server.core.errors import Internal, InvalidArgument, Quarantined
from tpuserve_server.core.journal import Journal
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.journaled import JournaledExecutor

A, B = ServableId("a", 1), ServableId("b", 1)
FAULT = "signal SIGSEGV"
FILES = VersionFiles(Path("/versions/1"), fingerprint="f")
ROWS = {"x": np.ones((1, 2), np.float32)}


class OneServable:
    """An executor that always loads the same servable."""

    def __init__(self, servable: Servable) -> None:
        self.servable = servable

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        return self.servable


class Broken:
    """An executor that cannot load."""

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        raise Internal("no device")


def test_runs_are_forwarded_and_recorded(tmp_path: Path) -> None:
    fake = FakeServable()
    servable = JournaledExecutor(OneServable(fake), Journal.open(tmp_path, "")).load(A, FILES)
    described = (servable.signatures, servable.device, servable.max_in_flight, servable.unrepeatable)
    assert described == (fake.signatures, "fake", 1, "")
    assert servable.dispatch("serving_default", ROWS, ["y"]).result()["y"].tolist() == [[2, 2]]
    assert Journal.open(tmp_path, FAULT).ends_of(A, "f") == []
    servable = JournaledExecutor(OneServable(fake), Journal.open(tmp_path, "")).load(A, FILES)
    servable.dispatch("serving_default", ROWS, ["y"])
    [end] = Journal.open(tmp_path, FAULT).ends_of(A, "f")
    assert (end.activity, end.how) == ("running", FAULT)
    servable.close()
    assert fake.closed


def test_failed_runs_and_loads_leave_no_mark(tmp_path: Path) -> None:
    fake = FakeServable(on_batch=lambda: (_ for _ in ()).throw(InvalidArgument("no")))
    journal = Journal.open(tmp_path, "")
    servable = JournaledExecutor(OneServable(fake), journal).load(A, FILES)
    with pytest.raises(InvalidArgument):
        servable.dispatch("serving_default", ROWS, ["y"])
    with pytest.raises(Internal):
        JournaledExecutor(Broken(), journal).load(B, FILES)
    following = Journal.open(tmp_path, FAULT)
    assert [*following.ends_of(A, "f"), *following.ends_of(B, "f")] == []


def test_version_that_ended_two_processes_is_quarantined_until_its_files_change(tmp_path: Path) -> None:
    for last_end in ("", FAULT):
        executor = JournaledExecutor(OneServable(FakeServable()), Journal.open(tmp_path, last_end))
        executor.load(A, FILES).dispatch("serving_default", ROWS, ["y"])
    executor = JournaledExecutor(OneServable(FakeServable()), Journal.open(tmp_path, FAULT))
    with pytest.raises(Quarantined, match=r"quarantined: 2 times .* last while running \(signal SIGSEGV\)"):
        executor.load(A, FILES)
    executor.load(A, VersionFiles(Path("/versions/1"), fingerprint="repaired"))
    executor.load(B, FILES)


def test_suspects_run_one_at_a_time_so_that_the_next_end_blames_one(tmp_path: Path) -> None:
    executor = JournaledExecutor(OneServable(FakeServable()), Journal.open(tmp_path, ""))
    for servable_id in (A, B):
        executor.load(servable_id, FILES).dispatch("serving_default", ROWS, ["y"])
    journal = Journal.open(tmp_path, FAULT)
    executor = JournaledExecutor(OneServable(FakeServable()), journal)
    first, second = executor.load(A, FILES), executor.load(B, FILES)
    run = first.dispatch("serving_default", ROWS, ["y"])
    waiting = threading.Thread(target=lambda: second.dispatch("serving_default", ROWS, ["y"]).result())
    waiting.start()
    following = Journal.open(tmp_path, FAULT)
    assert (len(following.ends_of(A, "f")), len(following.ends_of(B, "f"))) == (2, 1)
    run.result()
    waiting.join(10)
    assert not waiting.is_alive()
