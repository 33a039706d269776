"""Tests for the servable whose runs are in the journal: it forwards everything, and refuses forms."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support.fake_device import FakeServable, RecordingMetrics
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import ServableId, Signature, TensorSpec
from tpuserve_server.versions.manifest import InputEntry, SignatureEntry
from tpuserve_server.versions.recorded_servable import RecordedServable, describe_form

A, B = ServableId("a", 1), ServableId("b", 1)
FAULT = "signal SIGABRT"


def open_journal(folder: Path, last_end: str = "") -> Journal:
    return Journal.open(folder, last_end, SystemClock())


def load(
    journal: Journal | None,
    servable: FakeServable | None = None,
    servable_id: ServableId = A,
    metrics: RecordingMetrics | None = None,
) -> RecordedServable:
    servable, metrics = servable or FakeServable(), metrics or RecordingMetrics()
    if journal is None:
        return RecordedServable(servable_id, servable, metrics)
    with journal.loading(servable_id, "f") as entry:
        return RecordedServable(servable_id, servable, metrics, journal, entry)


def run(servable: RecordedServable, *shape: int, outputs: tuple[str, ...] = ("y",)) -> None:
    servable.dispatch("serving_default", {"x": np.ones(shape, np.float32)}, outputs).result()


def begin(servable: RecordedServable, *shape: int) -> None:
    servable.dispatch("serving_default", {"x": np.ones(shape, np.float32)}, ["y"])


@pytest.mark.parametrize("has_journal", [False, True])
def test_only_shapes_that_have_not_run_before_are_reported(tmp_path: Path, has_journal: bool) -> None:
    servable, metrics = FakeServable(), RecordingMetrics()
    recorded = load(open_journal(tmp_path) if has_journal else None, servable, metrics=metrics)
    run(recorded, 1, 2)
    run(recorded, 4, 2)
    recorded.serve({})
    run(recorded, 1, 2)
    run(recorded, 4, 2)
    assert metrics.unwarmed == []
    for _ in range(2):
        run(recorded, 2, 2)
        run(recorded, 4, 3)
        run(recorded, 4, 2, outputs=("y", "x"))
    assert metrics.unwarmed == ["serving_default"] * 3
    assert len(servable.batches) == 10


def test_sizes_that_the_exporter_has_not_run_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = RecordingMetrics()
    recorded = load(None, metrics=metrics)
    recorded.serve({"serving_default": SignatureEntry(inputs={"x": InputEntry(tried_sizes=((1, 4), (2, 8), None))})})
    for shape, untried in (
        ((4, 8, 99), 0),
        ((5, 2, 3), 1),
        ((5, 2, 3), 1),
        ((1, 1, 3), 2),
        ((1, 9, 3), 3),
        ((2, 3), 3),
    ):
        run(recorded, *shape)
        assert metrics.untried == untried
    (warning,) = caplog.messages
    assert "input 'x' of signature 'serving_default' with shape [5, 2, 3]" in warning
    assert "The exporter has checked the sizes [1-4, 2-8, *]" in warning


def test_shapes_without_end_do_not_fill_the_memory() -> None:
    metrics = RecordingMetrics()
    recorded = load(None, metrics=metrics)
    recorded.serve({})
    for _ in range(2):
        for width in range(5000):
            run(recorded, 1, width)
    # Shapes beyond the limit are reported each time.
    assert len(metrics.unwarmed) == 5000 + 5000 - 4096


@pytest.mark.parametrize("has_journal", [False, True])
def test_it_stands_for_its_servable_and_closes_it(tmp_path: Path, has_journal: bool) -> None:
    servable = FakeServable()
    recorded = load(open_journal(tmp_path) if has_journal else None, servable)
    described = (recorded.signatures, recorded.device, recorded.max_in_flight, recorded.unrepeatable)
    assert described == (servable.signatures, "fake", 1, "")
    begin(recorded, 1, 2)
    recorded.close()
    assert servable.closed
    assert open_journal(tmp_path, FAULT).ends_of(A, "f") == []


def test_form_that_ended_the_process_never_reaches_the_device_again_and_others_do(tmp_path: Path) -> None:
    recorded = load(open_journal(tmp_path))
    recorded.serve({})
    run(recorded, 1, 2)
    begin(recorded, 3, 0)
    servable, metrics = FakeServable(), RecordingMetrics()
    recorded = load(open_journal(tmp_path, FAULT), servable, metrics=metrics)
    recorded.serve({})
    for rows in (2, 3):
        with pytest.raises(InvalidArgument, match=r"signature 'serving_default' with x \[2-3, 0\]: a run with these"):
            begin(recorded, rows, 0)
    run(recorded, 1, 2)
    run(recorded, 4, 0)
    run(recorded, 4, 2)
    assert len(servable.batches) == 3
    assert metrics.refused_runs == ["serving_default"] * 2
    assert recorded.ends is not None
    assert "refuses signature 'serving_default' with x [2-3, 0]" in recorded.ends.describe_refusals()


def test_known_form_and_warmup_blame_the_version(tmp_path: Path) -> None:
    recorded = load(open_journal(tmp_path))
    recorded.serve({})
    run(recorded, 2, 2)
    # As a run of other rows, of other outputs, and of the very same shapes.
    for shape in ((3, 2), (2, 2)):
        begin(recorded, *shape)
        assert [end.form for end in open_journal(tmp_path, FAULT).ends_of(A, "f")] == [""]
        recorded = load(open_journal(tmp_path))
        (tmp_path / "journal.json").unlink()
        recorded.serve({})
        run(recorded, 2, 2)
    warming = load(open_journal(tmp_path), servable_id=B)
    begin(warming, 1, 2)
    assert [end.form for end in open_journal(tmp_path, FAULT).ends_of(B, "f")] == [""]


def test_failed_runs_leave_no_mark(tmp_path: Path) -> None:
    fails = FakeServable(on_batch=lambda: (_ for _ in ()).throw(InvalidArgument("no")))
    recorded, late = load(open_journal(tmp_path), fails), FakeServable()
    recorded.serve({})
    with pytest.raises(InvalidArgument):
        begin(recorded, 1, 2)
    assert open_journal(tmp_path, FAULT).ends_of(A, "f") == []
    recorded = load(open_journal(tmp_path), late)
    recorded.serve({})
    late.fault = InvalidArgument("no")
    with pytest.raises(InvalidArgument):
        run(recorded, 1, 2)
    assert open_journal(tmp_path, FAULT).ends_of(A, "f") == []


def test_suspects_run_one_at_a_time_so_that_the_next_end_blames_one(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for servable_id in (A, B):
        recorded = load(journal, FakeServable(never_blocks=True, max_in_flight=2), servable_id)
        assert recorded.never_blocks
        assert recorded.max_in_flight == 2
        begin(recorded, 1, 2)
    journal = open_journal(tmp_path, FAULT)
    first, second = (
        load(journal, FakeServable(never_blocks=True, max_in_flight=2), servable_id) for servable_id in (A, B)
    )
    # No event loop waits for another suspect.
    assert not first.never_blocks
    # The turn belongs to a thread, and another one may take the result of a run in flight.
    assert first.max_in_flight == 1
    flight = first.dispatch("serving_default", {"x": np.ones((1, 2), np.float32)}, ["y"])
    waiting = threading.Thread(target=run, args=(second, 1, 2))
    waiting.start()
    following = open_journal(tmp_path, FAULT)
    assert (len(following.ends_of(A, "f")), len(following.ends_of(B, "f"))) == (2, 1)
    flight.result()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("free", "shape", "described"),
    [
        (True, (0, 3), "[0, 3]"),
        (True, (1, 3), "[1, 3]"),
        (True, (2, 0), "[2-3, 0]"),
        (True, (7,), "[4-7]"),
        (True, (8, 1), "[8-15, 1]"),
        (True, (), "[]"),
        (False, (7, 3), "[7, 3]"),
    ],
)
def test_form_has_a_range_of_rows_if_batches_differ_in_it(free: bool, shape: tuple[int, ...], described: str) -> None:
    specs = {name: TensorSpec(name, np.dtype(np.float32), (None,) if free else None) for name in "ab"}
    inputs = {"b": np.ones(shape), "a": np.ones(1)}
    assert describe_form(Signature("s", specs, specs), inputs) == f"signature 's' with a [1], b {described}"
