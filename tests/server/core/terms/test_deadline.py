import math
import threading

import pytest

from tpuserve_server.core.terms.deadline import SystemClock


@pytest.mark.parametrize("at_s", [1e18, math.inf])
def test_a_time_further_away_than_threads_can_wait_for_is_waited_for_all_the_same(at_s: float) -> None:
    condition = threading.Condition()
    woken: list[float] = []

    def wait() -> None:
        with condition:
            ready.set()
            SystemClock().wait_until(condition, at_s)
            woken.append(at_s)

    ready = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    assert ready.wait(10)
    with condition:
        condition.notify()
    thread.join(10)
    assert woken == [at_s]
