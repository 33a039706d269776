"""Chaos: applies faults in a random order that a seed decides, checks the effect of each, and keeps a journal."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.soak.faults_of_clients import bad_requests, disconnects, slow_clients
from tests.soak.faults_of_files import full_disk, new_certificate
from tests.soak.faults_of_processes import crash, hung_and_replaced, hung_run, killed_worker
from tests.soak.faults_of_versions import corrupt_version, move_labels, new_version, reload, roll_back
from tests.soak.scene import EffectMissingError, Scene
from tests.soak.waiting import NotInTimeError


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `apply` causes one, checks its effect, and returns a detail for people."""

    name: str
    apply: Callable[[Scene], Awaitable[str]]
    # The process that serves ends, so its memory and threads start again.
    ends_worker: bool = False
    needs_disk: bool = False


FAULTS: Final = (
    Fault("new version", new_version),
    Fault("roll-back", roll_back),
    Fault("corrupt version", corrupt_version),
    Fault("label move", move_labels),
    Fault("reloads", reload),
    Fault("bad requests", bad_requests),
    Fault("disconnects", disconnects),
    Fault("slow clients", slow_clients),
    Fault("full disk", full_disk, needs_disk=True),
    Fault("new certificate", new_certificate),
    Fault("hung run", hung_run),
    Fault("hung run, process replaced", hung_and_replaced, ends_worker=True),
    Fault("worker killed", killed_worker, ends_worker=True),
    Fault("worker ended by a model", crash, ends_worker=True),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One fault of the journal. `problem` is empty if it had its effect and the server recovered."""

    at_s: float
    fault: str
    took_s: float
    detail: str
    problem: str = ""


class Chaos:
    """Applies one fault after the other, each followed by a pause and a check of good requests."""

    def __init__(self, scene: Scene, chance: random.Random, most_pause_s: float) -> None:
        """Apply nothing before `run`. `chance` decides the order and the pauses."""
        self._scene = scene
        self._chance = chance
        self._most_pause_s = most_pause_s
        self._stopping = asyncio.Event()
        self.journal: list[Entry] = []
        self.skipped = {fault.name: why for fault in FAULTS if (why := self._why_not(fault))}

    def stop(self) -> None:
        """Apply no further fault after the present one."""
        self._stopping.set()

    async def run_once(self) -> None:
        """Apply each kind once."""
        for fault in self._deck(with_ends=True):
            await self._apply(fault)

    async def run(self, ends_until_s: float, until_s: float) -> None:
        """Apply faults until `until_s` of the monotonic clock, and those that end the process until `ends_until_s`.

        Each kind comes once before any comes twice.
        """
        deck: list[Fault] = []
        while time.monotonic() < until_s and not self._stopping.is_set():
            deck = deck or list(self._deck(with_ends=time.monotonic() < ends_until_s))
            fault = deck.pop()
            if not fault.ends_worker or time.monotonic() < ends_until_s:
                await self._pause()
                await self._apply(fault)

    def _deck(self, *, with_ends: bool) -> Iterator[Fault]:
        able = [one for one in FAULTS if one.name not in self.skipped and (with_ends or not one.ends_worker)]
        self._chance.shuffle(able)
        yield from able

    def _why_not(self, fault: Fault) -> str:
        if fault.needs_disk and self._scene.server.disk is None:
            return "a small file system needs root and the right to mount"
        return ""

    async def _pause(self) -> None:
        pause_s = self._chance.uniform(0, self._most_pause_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _apply(self, fault: Fault) -> None:
        if self._stopping.is_set():
            return
        at_s = time.monotonic()
        detail, problem = "", ""
        try:
            detail = await fault.apply(self._scene)
            await self._scene.check()
        except (EffectMissingError, NotInTimeError) as error:
            problem = str(error)
        except Exception as error:
            # The edge of the chaos: a fault that fails in any way is a finding, and the others go on.
            problem = f"{type(error).__name__}: {error}"
        if (status := self._scene.server.process.poll()) is not None:
            problem = f"the server ended with {status}. {problem}"
            self.stop()
        self.journal.append(Entry(at_s, fault.name, time.monotonic() - at_s, detail, problem))
