"""Waits with a precision of 0.1 ms. gevent's timers use epoll's milliseconds, and can wake up a millisecond late."""

import ctypes
import os
import sys
import time
from typing import Final

import gevent
from gevent import get_hub

_CLOCK_MONOTONIC: Final = 1
_NANOSECONDS: Final = 1_000_000_000
_EXPIRATIONS_BYTES: Final = 8
_READ: Final = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseWait:
    """Timer for a single greenlet, based on timerfd on Linux and on gevent's timers elsewhere.

    `close` releases the timer's file descriptor.
    """

    def __init__(self) -> None:
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None)
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file >= 0:
            self._watcher = get_hub().loop.io(self._file, _READ)
            self._when = _Itimerspec()

    def until(self, instant_s: float) -> None:
        """Return when `time.perf_counter` reaches `instant_s`. Always let other greenlets run at least once."""
        left_s = instant_s - time.perf_counter()
        if left_s <= 0 or self._file < 0:
            gevent.sleep(max(left_s, 0))
            return
        seconds, nanoseconds = divmod(int(left_s * _NANOSECONDS) + 1, _NANOSECONDS)  # 0 would disarm the timer
        self._when.value.seconds, self._when.value.nanoseconds = seconds, nanoseconds
        self._libc.timerfd_settime(self._file, 0, ctypes.byref(self._when), None)
        get_hub().wait(self._watcher)
        os.read(self._file, _EXPIRATIONS_BYTES)

    def close(self) -> None:
        """Close the timer."""
        if self._file >= 0:
            self._watcher.close()
            os.close(self._file)
            self._file = -1
