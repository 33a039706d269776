import os
import sys
import threading

import pytest

from tpuserve_server.core.background import run_in_background


def test_the_result_comes_from_a_named_thread() -> None:
    assert run_in_background(lambda: threading.current_thread().name, "load") == "load"


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    error = KeyError("x")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        run_in_background(fail, "load")
    assert caught.value is error


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux alone")
def test_the_kernel_serves_it_after_the_threads_that_answer_requests() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    own = niceness()
    assert run_in_background(niceness, "load") == max(own, 10)
    assert niceness() == own
