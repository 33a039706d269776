"""Scene: what a fault of the soak acts on, and what all of them need."""

import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.soak.outcome import Kind, Outcome
from tests.soak.question import COUNTED
from tests.soak.soaked_server import SoakedServer
from tests.soak.traffic import Traffic
from tests.soak.truth import Truth
from tests.soak.waiting import wait_until
from tests.soak.windows import Windows

# gRPC's clients connect again within this time after a new process listens.
_SETTLE_S = 2.0


class EffectMissingError(Exception):
    """A fault without its documented effect. The message has both."""


@dataclass
class Scene:
    """The server, its traffic, and the state that faults keep. `chance` decides details of faults."""

    server: SoakedServer
    traffic: Traffic
    truth: Truth
    windows: Windows
    chance: random.Random
    # Highest version that any model ever had. Numbers are never used twice.
    newest: int = 1
    # How often a version has ended the process, by model.
    ends: dict[str, int] = field(default_factory=dict)

    def next_version(self) -> int:
        self.newest += 1
        return self.newest

    @asynccontextmanager
    async def window(self, cause: str, explains: Callable[[str, Outcome], bool]) -> AsyncIterator[None]:
        """Allow outcomes until shortly after the context, in which the server must become healthy again."""
        window = self.windows.open(cause, time.monotonic(), explains)
        try:
            yield
        finally:
            window.until_s = time.monotonic() + _SETTLE_S

    async def states(self, model: str) -> dict[int, tuple[str, str]]:
        """Return the state and the error of each version of a model."""
        document = json.loads(await self.server.get_text(f"/v1/models/{model}"))
        return {
            int(one["version"]): (one["state"], one["status"]["error_message"])
            for one in document["model_version_status"]
        }

    async def wait_for_state(self, model: str, version: int, state: str) -> str:
        """Wait until a version has a state, and return its error."""

        async def has_state() -> bool:
            return (await self.states(model)).get(version, ("", ""))[0] == state

        await wait_until(has_state, f"{model} version {version} {state}")
        return (await self.states(model))[version][1]

    async def check(self, model: str = COUNTED) -> None:
        """Check that good requests of every protocol are answered. Raises EffectMissingError."""
        outcomes = await self.traffic.check(model)
        if failed := {protocol: str(one) for protocol, one in outcomes.items() if one.kind is not Kind.ANSWERED}:
            raise EffectMissingError(f"good requests for {model} after the fault: {failed}")


def expect(got: object, *expected: object) -> None:
    """Raise EffectMissingError unless `got` is one of the expected values."""
    if got not in expected:
        raise EffectMissingError(f"expected {' or '.join(map(str, expected))}, got {got}")
