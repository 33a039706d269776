import numpy as np
import pytest

from tests.support.fake_device import FakeServable
from tpuserve_server.versions.manifest import InputEntry, SignatureEntry
from tpuserve_server.versions.shape_watch import ShapeWatch


def run(watch: ShapeWatch, *shape: int, outputs: tuple[str, ...] = ("y",)) -> None:
    watch.dispatch("serving_default", {"x": np.ones(shape, np.float32)}, outputs).result()


def test_only_what_has_not_run_before_is_told() -> None:
    servable, told = FakeServable(), list[tuple[str, bool]]()
    watch = ShapeWatch(servable)
    run(watch, 1, 2)
    run(watch, 4, 2)
    watch.observe(lambda *new: told.append(new))
    run(watch, 1, 2)
    run(watch, 4, 2)
    assert told == []
    run(watch, 2, 2)
    run(watch, 4, 3)
    run(watch, 4, 2, outputs=("y", "x"))
    assert told == [("serving_default", True)] * 3
    run(watch, 2, 2)
    run(watch, 4, 3)
    assert len(told) == 3
    assert len(servable.batches) == 9


def test_sizes_that_the_exporter_did_not_run_are_reported_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    entry = SignatureEntry(inputs={"x": InputEntry(tried_sizes=((1, 4), (2, 8), None))})
    told = list[tuple[str, bool]]()
    watch = ShapeWatch(FakeServable(), {"serving_default": entry})
    watch.observe(lambda *new: told.append(new))
    for shape in ((4, 8, 99), (5, 2, 3), (1, 1, 3), (1, 9, 3), (2, 3)):
        run(watch, *shape)
    assert [is_tried for _, is_tried in told] == [True, False, False, False, True]
    (warning,) = caplog.messages
    assert "input 'x' with shape [5, 2, 3]. The exporter has checked the sizes [[1, 4], [2, 8], None]" in warning


def test_shapes_without_end_do_not_fill_the_memory() -> None:
    told = list[tuple[str, bool]]()
    watch = ShapeWatch(FakeServable())
    watch.observe(lambda *new: told.append(new))
    for _ in range(2):
        for width in range(5000):
            run(watch, 1, width)
    # Shapes beyond the limit are reported each time.
    assert len(told) == 5000 + 5000 - 4096


def test_it_stands_for_its_servable_and_leaves_it_open() -> None:
    servable = FakeServable()
    watch = ShapeWatch(servable)
    assert (watch.signatures, watch.device) == (servable.signatures, "fake")
    watch.close()
    assert not servable.closed
