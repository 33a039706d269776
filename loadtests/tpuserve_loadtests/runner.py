"""One run: Locust, its users and the recorder put together, started, watched and stopped.

Importing this imports Locust: see gevent_setup.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from gevent.event import Event
from locust.env import Environment

from tpuserve_client.address import parse_address
from tpuserve_loadtests.recorder import Recorder
from tpuserve_loadtests.suite import UserClass, failure_message, grpc_users, rest_users
from tpuserve_loadtests.workload import Workload

TICK_S: Final = 0.5
# A request that is being answered when time is up may still take its whole timeout.
STOP_MARGIN_S: Final = 5.0
# From here on the generator, which has one core, is likely what limits the rate.
BUSY_CORES: Final = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. An address is None where its protocol is not measured; `users` are shared between protocols."""

    workload: Workload
    grpc_address: str | None
    rest_url: str | None
    users: int
    duration_s: float
    timeout_s: float

    @property
    def users_by_protocol(self) -> dict[str, int]:
        """Users of each protocol; gRPC gets the odd one."""
        protocols = list(self.workload.exchanges)
        share, odd = divmod(self.users, len(protocols))
        return {protocol: share + (index < odd) for index, protocol in enumerate(protocols)}


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that is over. `elapsed_s` runs from the first user's start to the last answer."""

    recorder: Recorder
    elapsed_s: float
    notes: tuple[str, ...]


def run(plan: Plan, on_tick: Callable[[float, Recorder], None]) -> Finished:
    """Block until the run is over; Ctrl-C ends it early and keeps what was measured.

    `on_tick` is called about twice a second with the seconds gone by and what was recorded so far.
    """
    logging.basicConfig(level=logging.ERROR)  # Locust logs its own warnings to the root logger
    recorder = Recorder(tuple(plan.workload.exchanges))
    with _channel(plan) as channel:
        environment = Environment(
            user_classes=_user_classes(plan, channel), stop_timeout=plan.timeout_s + STOP_MARGIN_S
        )
        environment.events.request.add_listener(_listener(recorder))
        runner = environment.create_local_runner()
        start, cpu_start = time.perf_counter(), time.process_time()
        with _ctrl_c() as pressed:
            runner.start(plan.users, spawn_rate=plan.users)
            early = _wait(start, plan.duration_s, pressed, lambda elapsed_s: on_tick(elapsed_s, recorder))
        runner.quit()
        elapsed_s = time.perf_counter() - start
        cores = (time.process_time() - cpu_start) / elapsed_s
    return Finished(recorder, elapsed_s, _notes(early, cores))


def _channel(plan: Plan) -> grpc.Channel:
    # Made for REST alone, too: it connects at the first call only, and there is one way to run.
    target = parse_address(plan.grpc_address).target if plan.grpc_address else "localhost"
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(target, options=options)


def _user_classes(plan: Plan, channel: grpc.Channel) -> list[UserClass]:
    classes = []
    users = plan.users_by_protocol
    for protocol, exchanges in plan.workload.exchanges.items():
        if protocol == "grpc":
            spec = plan.workload.spec
            classes.append(grpc_users(channel, exchanges, spec, users=users[protocol], timeout_s=plan.timeout_s))
        else:
            assert plan.rest_url is not None  # the workload has requests for protocols with an address only
            url = parse_address(plan.rest_url).target
            classes.append(rest_users(url, exchanges, users=users[protocol], timeout_s=plan.timeout_s))
    return classes


def _listener(recorder: Recorder) -> Callable[..., None]:
    def on_request(name: str, response_time: float, exception: BaseException | None, response: Any, **_: Any) -> None:  # noqa: ANN401  Locust's
        recorder.record(name, response_time * 1000, failure_message(exception, response))

    return on_request


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """An event that Ctrl-C sets. KeyboardInterrupt would hit whichever user runs, and its request would go uncounted.

    Who started this process may have it ignore SIGINT, as a shell does in the background: then it stays ignored.
    """
    pressed = Event()
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _wait(start: float, duration_s: float, pressed: Event, on_tick: Callable[[float], None]) -> bool:
    """Wait until the time is up; True if Ctrl-C came first."""
    while (elapsed_s := time.perf_counter() - start) < duration_s:
        on_tick(elapsed_s)
        if pressed.wait(min(TICK_S, duration_s - elapsed_s)):
            return True
    return False


def _notes(early: bool, cores: float) -> tuple[str, ...]:
    notes = []
    if early:
        notes.append("stopped early")
    if cores >= BUSY_CORES:
        notes.append(f"the load generator itself used {cores:.2f} cores: the rate may be its limit, not the server's")
    return tuple(notes)
