import numpy as np
import pytest

from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.types import Signature, TensorSpec

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("spec", "shape", "accepted"),
    [
        ((None, 2), (5, 2), True),
        ((None, 2), (5, 3), False),
        ((None, 2), (2,), False),
        (None, (1, 2, 3), True),
        ((), (), True),
    ],
)
def test_shapes_agree_in_rank_and_known_dimensions(
    spec: tuple[int | None, ...] | None, shape: tuple[int, ...], accepted: bool
) -> None:
    assert TensorSpec("x", FLOAT, spec).accepts_shape(shape) is accepted


@pytest.mark.parametrize(
    ("inputs", "outputs", "batchable"),
    [
        ([(None, 2)], [(None,)], True),
        ([(None, 2)], [()], False),
        ([(None, 2)], [None], False),
        ([(3, 2)], [(None,)], False),
        ([], [(None,)], False),
    ],
)
def test_rows_can_be_shared_only_if_everything_has_a_free_first_dimension(
    inputs: list[tuple[int | None, ...]], outputs: list[tuple[int | None, ...] | None], batchable: bool
) -> None:
    def specs(shapes: list[tuple[int | None, ...] | None]) -> dict[str, TensorSpec]:
        return {str(index): TensorSpec(str(index), FLOAT, shape) for index, shape in enumerate(shapes)}

    assert Signature("s", specs([*inputs]), specs(outputs)).is_batchable is batchable


def test_deadlines() -> None:
    clock = SystemClock()
    now_s = clock.monotonic_s()
    assert clock.monotonic_s() >= now_s
    deadline = Deadline(now_s + 5)
    assert deadline.remaining_s(now_s) == pytest.approx(5)
    assert not deadline.expired(now_s)
    assert deadline.expired(now_s + 5)
    assert deadline.is_finite
    assert not Deadline.never().is_finite
    assert not Deadline.never().expired(now_s)
    assert Deadline.after(1, clock).at_s > now_s
