import ctypes
import os
import platform
import struct
import sys
import threading

import pytest

from tpuserve_server.core.system.background import run_in_background

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


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


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _SCHED_GETATTR or _kernel() < (6, 12),
    reason="Linux 6.12 is the first whose threads have slices of their own",
)
def test_whoever_answers_requests_need_not_wait_for_the_end_of_its_slice() -> None:
    def slice_ns() -> int:
        attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
        assert ctypes.CDLL(None).syscall(_SCHED_GETATTR[platform.machine()], 0, attributes, _SCHED_ATTR.size, 0) == 0
        return int(_SCHED_ATTR.unpack(attributes.raw)[5])

    own = slice_ns()
    assert run_in_background(slice_ns, "load") > 10 * own
    assert slice_ns() == own


def test_where_the_system_refuses_niceness_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("seccomp")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert run_in_background(lambda: "done", "load") == "done"
