import numpy as np

from tests.support.fake_device import FakeServable
from tpuserve_server.versions.shape_watch import ShapeWatch


def run(watch: ShapeWatch, *shape: int, outputs: tuple[str, ...] = ("y",)) -> None:
    watch.dispatch("serving_default", {"x": np.ones(shape, np.float32)}, outputs).result()


def test_only_what_has_not_run_before_is_told() -> None:
    servable, told = FakeServable(), list[str]()
    watch = ShapeWatch(servable)
    run(watch, 1, 2)
    run(watch, 4, 2)
    watch.observe(told.append)
    run(watch, 1, 2)
    run(watch, 4, 2)
    assert told == []
    run(watch, 2, 2)
    run(watch, 4, 3)
    run(watch, 4, 2, outputs=("y", "x"))
    assert told == ["serving_default"] * 3
    run(watch, 2, 2)
    run(watch, 4, 3)
    assert len(told) == 3
    assert len(servable.batches) == 9


def test_shapes_without_end_do_not_fill_the_memory() -> None:
    told = list[str]()
    watch = ShapeWatch(FakeServable())
    watch.observe(told.append)
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
