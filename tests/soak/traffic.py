"""Traffic: clients that send requests of all protocols at a modest rate, and record each outcome."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.soak import oip_grpc, oip_rest, tf_grpc, tf_rest
from tests.soak.connections import Address, Connections
from tests.soak.hints import Hints
from tests.soak.ledger import Ledger, Sent
from tests.soak.outcome import Kind, Outcome, RequestError
from tests.soak.question import (
    COUNTED,
    CRASHING,
    ENSEMBLE,
    LABELLED,
    MOST_ROWS,
    SEQUENCES,
    STUCK,
    Question,
    WrongAnswerError,
)
from tests.soak.reply import Reply
from tests.soak.truth import Truth

CLIENTS: Final = 8
# Requests of a client before it connects again, so that handshakes meet new certificates.
_RENEW_AFTER: Final = 100
LABELS: Final = ("stable", "canary")
# Both versions of the labelled model, which requests also name by number.
LABELLED_VERSIONS: Final = (1, 2)

Ask: TypeAlias = Callable[[Connections, Question, Hints], Awaitable[Reply]]
_BY_NAME: Final = (COUNTED, LABELLED, ENSEMBLE)
_ANY: Final = (*_BY_NAME, SEQUENCES, STUCK, CRASHING)
_EXAMPLES: Final = (COUNTED,)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a protocol, and the models that it asks."""

    protocol: str
    ask: Ask
    models: Sequence[str]
    has_labels: bool = False
    weight: int = 2

    @property
    def name(self) -> str:
        return self.ask.__name__


METHODS: Final = (
    Method(tf_grpc.PROTOCOL, tf_grpc.predict, _ANY, has_labels=True, weight=8),
    Method(tf_grpc.PROTOCOL, tf_grpc.classify, _EXAMPLES),
    Method(tf_grpc.PROTOCOL, tf_grpc.regress, _EXAMPLES),
    Method(tf_grpc.PROTOCOL, tf_grpc.multi_inference, _EXAMPLES),
    Method(tf_grpc.PROTOCOL, tf_grpc.metadata, (COUNTED, SEQUENCES), weight=1),
    Method(tf_grpc.PROTOCOL, tf_grpc.status, (COUNTED, SEQUENCES), weight=1),
    Method(tf_rest.PROTOCOL, tf_rest.predict_rows, _BY_NAME, has_labels=True, weight=4),
    Method(tf_rest.PROTOCOL, tf_rest.predict_columns, _ANY, has_labels=True, weight=4),
    Method(tf_rest.PROTOCOL, tf_rest.classify, _EXAMPLES),
    Method(tf_rest.PROTOCOL, tf_rest.regress, _EXAMPLES),
    Method(tf_rest.PROTOCOL, tf_rest.metadata, (COUNTED, SEQUENCES), weight=1),
    Method(tf_rest.PROTOCOL, tf_rest.status, (COUNTED, SEQUENCES), weight=1),
    Method(oip_grpc.PROTOCOL, oip_grpc.infer_raw, _ANY, weight=4),
    Method(oip_grpc.PROTOCOL, oip_grpc.infer_typed, _ANY),
    Method(oip_grpc.PROTOCOL, oip_grpc.stream, (*_BY_NAME, SEQUENCES), weight=4),
    Method(oip_grpc.PROTOCOL, oip_grpc.metadata, (COUNTED, SEQUENCES), weight=1),
    Method(oip_rest.PROTOCOL, oip_rest.infer_json, _ANY, weight=4),
    Method(oip_rest.PROTOCOL, oip_rest.infer_binary, _ANY, weight=4),
    Method(oip_rest.PROTOCOL, oip_rest.metadata, (COUNTED, SEQUENCES), weight=1),
)


class Traffic:
    """Clients on one event loop. Each sends one request at a time, so as many are in flight as there are clients."""

    def __init__(
        self, address: Address, truth: Truth, ledger: Ledger, chance: random.Random, rate_per_s: float
    ) -> None:
        """Send nothing before `run`. `chance` decides what each request is, and when it is sent."""
        self._address = address
        self._truth = truth
        self._ledger = ledger
        self._chance = chance
        self._pause_s = CLIENTS / rate_per_s
        self._numbers = itertools.count(0, oip_grpc.NUMBERS)
        self._stopping = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._in_flight = 0
        self._idle = asyncio.Event()

    async def run(self) -> None:
        """Send until `stop`, then wait for the answers."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._run_client())

    def stop(self) -> None:
        self._stopping.set()
        self._open.set()

    async def hold(self) -> None:
        """Send no further request until `go_on`, and wait until none is in flight."""
        self._open.clear()
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    def go_on(self) -> None:
        self._open.set()

    async def check(self, model: str = COUNTED) -> dict[str, Outcome]:
        """Send a good request over each protocol with new connections. Count them, and return their outcomes."""
        outcomes = {}
        async with Connections(self._address) as at:
            for protocol in dict.fromkeys(one.protocol for one in METHODS):
                able = [one for one in METHODS if one.protocol == protocol and model in one.models]
                question = Question(next(self._numbers), model)
                outcomes[protocol] = await self._send(at, self._chance.choice(able), question, Hints())
        return outcomes

    async def _run_client(self) -> None:
        while not self._stopping.is_set():
            async with Connections(self._address) as at:
                for _ in range(_RENEW_AFTER):
                    await self._pause()
                    await self._open.wait()
                    if self._stopping.is_set():
                        return
                    await self._send_any(at)

    async def _pause(self) -> None:
        """Wait for a random time, or until `stop`. The times of a Poisson process do not fall into step with faults."""
        pause_s = self._chance.expovariate(1 / self._pause_s)
        try:
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        except TimeoutError:
            return

    async def _send_any(self, at: Connections) -> None:
        [method] = self._chance.choices(METHODS, [one.weight for one in METHODS])
        model = self._chance.choice(method.models)
        label, version = "", 0
        if model == LABELLED:
            if method.has_labels and self._chance.random() < 0.7:
                label = self._chance.choice(LABELS)
            else:
                version = self._chance.choice(LABELLED_VERSIONS)
        rows = self._chance.randint(1, MOST_ROWS)
        question = Question(next(self._numbers), model, rows, label, version)
        await self._send(at, method, question, Hints.choose(self._chance))

    async def _send(self, at: Connections, method: Method, question: Question, hints: Hints) -> Outcome:
        self._in_flight += 1
        from_s = time.monotonic()
        try:
            reply = await method.ask(at, question, hints)
            outcome = self._judge(question, reply, from_s)
        except RequestError as error:
            outcome = error.outcome
        except (WrongAnswerError, KeyError, ValueError, TypeError, IndexError) as error:
            # A response that cannot be decoded is wrong, too.
            outcome = Outcome(Kind.WRONG, detail=f"{type(error).__name__}: {error}")
        finally:
            self._in_flight -= 1
            self._idle.set()
        sent = Sent(method.protocol, method.name, question.model, from_s, time.monotonic(), hints.is_short)
        self._ledger.record(sent, outcome)
        return outcome

    def _judge(self, question: Question, reply: Reply, from_s: float) -> Outcome:
        version = reply.version(question)
        if version is None or question.model in (STUCK, CRASHING, SEQUENCES):
            return Outcome(Kind.ANSWERED)
        # The answers of the ensemble prove the version of its last step.
        model = COUNTED if question.model == ENSEMBLE else question.model
        if question.version:
            allowed = {question.version}
        else:
            allowed = self._truth.versions(from_s, time.monotonic(), model, question.label)
        if version in allowed:
            return Outcome(Kind.ANSWERED)
        named = f"{question.model} {question.label or question.version or 'latest'}"
        return Outcome(Kind.WRONG, detail=f"{named}: version {version}, expected one of {sorted(allowed)}")
