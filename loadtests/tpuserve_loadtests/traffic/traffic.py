"""One process's share of a running load: closed users that wait for responses, or a schedule that does not.

The process must call give_process_to_gevent (gevent_setup) before it imports this module.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, repeat, takewhile
from random import Random
from typing import Final

import gevent
from gevent import get_hub
from gevent.event import Event

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.answers import AnswerChecks
from tpuserve_loadtests.golden.form import WrongAnswer
from tpuserve_loadtests.measurement.recorder import Delivery, Recorder
from tpuserve_loadtests.requests.workload import Turns
from tpuserve_loadtests.traffic.senders import MAX_IN_FLIGHT, Sender, failure_message

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
        if self._file >= 0:
            self._watcher.close()
            os.close(self._file)
            self._file = -1


# A late dispatcher sends this many due requests, and then lets greenlets read responses.
_BATCH: Final = 16
# Interval of checks for a stop during long gaps between arrivals.
_LOOK_S: Final = 0.5


class Traffic:
    """Traffic of a load, which the greenlets of its users send with `drive`.

    Each closed user sends its own requests. A single user sends the whole schedule of an open load.
    """

    def __init__(
        self,
        load: Load,
        senders: Sequence[Sender],
        recorder: Recorder,
        checks: AnswerChecks,
        *,
        order: Sequence[int] = (),
        share: tuple[int, int] = (0, 1),
        start_s: float | None = None,
    ) -> None:
        """Set up the traffic. `share` is this process's number, and the number of processes.

        `order` is the workload's: senders by number. The load starts at `start_s` of `time.perf_counter`, or with
        `drive`.
        """
        self.recorder = recorder
        self._starts_now = start_s is None
        self.start_s = time.perf_counter() if start_s is None else start_s
        self.stopped = False
        # The load plans no arrivals after this instant.
        self._end_s = math.inf
        # The schedule's arrivals after the next one, and the instant of that one while the dispatcher waits for it.
        self._instants = load.instants(*share) if load.is_open else iter(())
        self._next_s = math.inf
        # Set when the schedule is complete or has no arrival before its end, or when the load's last request begins.
        self.dispatched = Event()
        # Set when no more requests will be sent and the last response has arrived.
        self.landed = Event()
        self._in_flight = 0
        # The name under which each request in flight counts, and its due time.
        self._pending: dict[int, tuple[str, float]] = {}
        self._given_up = False
        self._load = load
        self._senders = senders
        self._turns = Turns(order or range(len(senders)))
        # Each process takes every `share[1]`-th number of users and of requests.
        self._users = count(*share)
        self._requests = count(*share)
        self._requests_of = [count(*share) for _ in senders]
        self._is_mixed = bool(order)
        self._names = {sender.line.name: sender.line.counted_as() for sender in senders}
        self._checks = checks
        self._left = load.requests_of(*share) if load.requests and load.users else math.inf
        self._random = Random(load.seed + share[0])

    def end_schedule(self) -> float:
        """End the schedule now, and return its length in seconds.

        The load plans no arrivals after this instant. Those before it still leave, because the dispatcher may not have
        run since they were due. `dispatched` is set after the last one. Closed users continue until `stop`.
        """
        self._end_s = time.perf_counter()
        if self._next_s > self._end_s:
            self.dispatched.set()
        return self._end_s - self.start_s

    def stop(self) -> None:
        """Stop sending, and drop the arrivals that were due before the end of the schedule and have not left.

        `drive` returns after the responses to requests in flight. Call `end_schedule` first.
        """
        self.stopped = True
        if self._next_s <= self._end_s:
            length_s = self._end_s - self.start_s
            self.recorder.dropped += 1 + sum(1 for _ in takewhile(lambda due: due <= length_s, self._instants))
            self._next_s = math.inf
        self._look_landed()

    def give_up(self, timeout_s: float) -> None:
        """Count the requests in flight: as failed after their timeout, else as unanswered."""
        self._given_up = True
        now_s = time.perf_counter()
        for name, due_s in self._pending.values():
            if now_s - due_s < timeout_s:
                self.recorder.unanswered += 1
            else:
                message = f"no response within {timeout_s:g} s"
                self.recorder.record(name, due_s - self.start_s, now_s - self.start_s, message)

    def drive(self) -> None:
        """Block until the traffic stops or its schedule ends, and all responses have arrived."""
        if self._load.is_open:
            self._dispatch()
            return
        # A closed user counts as in flight until it ends, including the short times between requests.
        self._in_flight += 1
        self._drive_closed()
        self._land()

    def _drive_closed(self) -> None:
        user = next(self._users)
        gevent.sleep(max(self.start_s - time.perf_counter(), 0))
        turns: Iterator[tuple[int, int]] = map(self._turns.at, self._requests)
        if not self._is_mixed:
            # Each user stays on one line, so that a slow line does not take users from a fast one.
            line = user % len(self._senders)
            turns = zip(repeat(line), self._requests_of[line])
        if self._load.think is not None:
            # Users that begin together would continue to send together.
            self._pause(self._load.think.mean_s * user / self._load.users)
        while not self.stopped and self._may_send(due_s := time.perf_counter()):
            self._ask(*next(turns), due_s)
            if self._load.think is not None and not self.stopped:
                self._pause(self._load.think.draw_s(self._random))

    def _may_send(self, due_s: float) -> bool:
        if due_s - self.start_s < self._load.warm_up_s:
            return True
        is_left = self._left > 0
        self._left -= is_left
        if not self._left:
            self.dispatched.set()
        return is_left

    def _pause(self, seconds: float) -> None:
        self._land()
        gevent.sleep(seconds)
        self._in_flight += 1

    def _dispatch(self) -> None:
        wait = PreciseWait()
        behind = 0
        if self._starts_now:
            self.start_s = time.perf_counter()
        for due in self._instants:
            number = next(self._requests)
            self._next_s = due_s = self.start_s + due
            behind = behind + 1 if due_s <= time.perf_counter() else 0
            if behind % _BATCH == 0:
                self._wait(wait, due_s)
            if self._is_over(due_s):
                break
            if self._in_flight >= MAX_IN_FLIGHT:
                self.recorder.dropped += 1
                continue
            self._in_flight += 1
            # A raw greenlet costs half as much as one that can be joined.
            gevent.spawn_raw(self._send_on_time, number, due_s)
        self._next_s = math.inf
        wait.close()
        self.dispatched.set()
        self._look_landed()
        self.landed.wait()

    def _wait(self, wait: PreciseWait, due_s: float) -> None:
        while not self._is_over(due_s) and due_s - time.perf_counter() > _LOOK_S:
            wait.until(time.perf_counter() + _LOOK_S)
        if not self._is_over(due_s):
            wait.until(due_s)

    def _is_over(self, due_s: float) -> bool:
        return self.stopped or due_s > self._end_s

    def _send_on_time(self, number: int, due_s: float) -> None:
        self.recorder.record_lag(due_s - self.start_s, time.perf_counter() - due_s)
        self._ask(*self._turns.at(number), due_s)
        self._land()

    def _land(self) -> None:
        self._in_flight -= 1
        self._look_landed()

    def _look_landed(self) -> None:
        if not self._in_flight and (self.dispatched.is_set() or self.stopped):
            self.landed.set()

    def _ask(self, line: int, turn: int, due_s: float) -> None:
        sender = self._senders[line]
        error, delivery = None, Delivery()
        names = self._names[sender.line.name]
        name = names[turn % len(names)]
        self._pending[id(delivery)] = name, due_s
        try:
            reply = sender.send(turn, delivery)
            finished_s = time.perf_counter()
            # Responses often arrive together. All waiting greenlets note their times first, before any of them records
            # its request and sends the next one. Otherwise, each would add its CPU time to the latencies of the rest.
            gevent.sleep(0)
            self._checks.check(sender.line, turn, reply, finished_s, delivery)
        except Exception as caught:  # any error is the outcome of this request and must not end the user
            finished_s, error = time.perf_counter(), caught
        del self._pending[id(delivery)]
        if self._given_up:
            return
        message = None if error is None else failure_message(error)
        if delivery.tokens_s:
            delivery.tokens_s = tuple(at_s - self.start_s for at_s in delivery.tokens_s)
        delivery.wrong = isinstance(error, WrongAnswer)
        self.recorder.record(name, due_s - self.start_s, finished_s - self.start_s, message, delivery)
