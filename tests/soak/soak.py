"""Soak: a real server under mixed traffic and faults, for a time."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.soak.chaos import Chaos
from tests.soak.ledger import Ledger
from tests.soak.levels import LEAST_JUDGED_S, Sampler, judge
from tests.soak.question import COUNTED, LABELLED
from tests.soak.result import Result
from tests.soak.scene import Scene
from tests.soak.soaked_server import SoakedServer, small_disk
from tests.soak.traffic import Traffic
from tests.soak.truth import Truth
from tests.soak.windows import Windows

# Share of the run in which faults may end the process that serves. The second half needs one process.
_ENDS_SHARE: Final = 0.45
_SAMPLES: Final = 600


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run. Without `seconds`, each kind of fault comes once, and the run ends."""

    seed: int
    rate_per_s: float
    seconds: float | None = None
    most_pause_s: float = 8.0


@dataclass
class Soak:
    """The parts of a run, for those that show its progress."""

    plan: Plan
    server: SoakedServer
    traffic: Traffic
    chaos: Chaos
    ledger: Ledger
    sampler: Sampler
    start_s: float

    def stop(self) -> None:
        """End the run after the present fault."""
        self.chaos.stop()

    def progress(self) -> str:
        """Return the counts so far in one line."""
        usage = self.sampler.samples[-1].usage
        ledger, journal = self.ledger, self.chaos.journal
        failed = sum(bool(one.problem) for one in journal)
        return (
            f"[{(time.monotonic() - self.start_s) / 60:4.1f} min] {ledger.requests.total():,} requests, "
            f"wrong {ledger.wrong}, lost {ledger.lost}, without a cause {ledger.unexplained}, "
            f"victims {ledger.explained.total():,}, {len(journal)} faults, {failed} failed, "
            f"{usage.memory_mb:,.0f} MB, {usage.threads} threads, {usage.descriptors} descriptors"
            + (f", last: {journal[-1].fault}" if journal else "")
        )


async def run_soak(plan: Plan, folder: Path, watch: Callable[[Soak], AsyncIterator[None]] | None = None) -> Result:
    """Run a soak in an empty folder, and return its result.

    `watch` is a context that runs during the soak, for progress and Ctrl-C.
    """
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk"))
        server = SoakedServer(folder, disk)
        stack.enter_context(server.running())
        await server.wait_until_ready()
        soak = _build(plan, server)
        watching = contextlib.asynccontextmanager(watch)(soak) if watch else contextlib.nullcontext()
        async with watching:
            await _run(soak)
        levels = judge(soak.sampler.samples)
        ended = await server.stop()
        return Result(
            plan.seed, time.monotonic() - soak.start_s, soak.ledger, soak.chaos.journal, soak.chaos.skipped,
            levels, ended, "Traceback" in server.log_after(0),
        )  # fmt: skip


def _build(plan: Plan, server: SoakedServer) -> Soak:
    now_s = time.monotonic()
    truth = Truth()
    truth.begin(1, now_s, COUNTED)
    for label, version in server.labels.items():
        truth.begin(version, now_s, LABELLED, label)
    windows = Windows()
    ledger = Ledger(windows)
    # Each part has its own numbers, so that the order of faults does not depend on the speed of the machine.
    of_traffic, of_details, of_order = (
        random.Random(f"{plan.seed} {part}") for part in ("traffic", "details", "order")
    )
    traffic = Traffic(server.address, truth, ledger, of_traffic, plan.rate_per_s)
    chaos = Chaos(Scene(server, traffic, truth, windows, of_details), of_order, plan.most_pause_s)
    interval_s = max((plan.seconds or LEAST_JUDGED_S) / _SAMPLES, 0.5)
    return Soak(plan, server, traffic, chaos, ledger, Sampler(server, interval_s), now_s)


async def _run(soak: Soak) -> None:
    """Apply the faults under traffic. At the end, wait for all answers while the server still runs."""
    await soak.traffic.check()
    soak.sampler.take()
    seconds = soak.plan.seconds
    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(soak.sampler.run())
        sending = group.create_task(soak.traffic.run())
        if seconds is None:
            await soak.chaos.run_once()
        else:
            await soak.chaos.run(soak.start_s + seconds * _ENDS_SHARE, soak.start_s + seconds)
        soak.traffic.stop()
        await sending
        sampling.cancel()
    soak.sampler.take()
