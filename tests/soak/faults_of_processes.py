"""Faults of processes: runs that hang, and the ends of the process that serves.

A run hangs in a write to a pipe that no process reads. The soak reads it to end the run.
"""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.faults.fault_models import save_slow
from tests.soak.connections import Connections
from tests.soak.hints import PATIENCE_S, Hints
from tests.soak.outcome import Kind, Outcome, RequestError
from tests.soak.question import CRASHING, STUCK
from tests.soak.scene import Scene, expect
from tests.soak.waiting import wait_until

_PREDICT: Final = "/tensorflow.serving.PredictionService/Predict"
# Ends of the process within an hour after which a version is quarantined.
_MOST_ENDS: Final = 2
# Deadline of the request behind a run. The run has begun by then, and has not reached the server's limit.
_QUEUED_S: Final = 2.0
_HEAD_START_S: Final = 0.5
_LET_GO_MS: Final = 1000


async def hung_run(scene: Scene) -> str:
    """Let a run hang, check that its callers are released and others are served, and end the run."""
    with _pipe(scene) as pipe:
        async with scene.window("hung run", _of_model(STUCK)), _running(scene, STUCK, pipe) as stuck:
            expect(str(await stuck), "DEADLINE_EXCEEDED")
            expect(await scene.server.get_status("/healthz"), 503)
            await scene.check()
            await asyncio.to_thread(_release, pipe)
            await wait_until(lambda: _is_live(scene), "/healthz 200")
    return "live again"


async def hung_and_replaced(scene: Scene) -> str:
    """Let a run hang until the server replaces the process that serves."""
    worker = scene.server.worker()
    with _pipe(scene) as pipe:
        async with (
            scene.window("replaced for a hung run", lambda model, outcome: _is_new_start(outcome) or model == STUCK),
            _running(scene, STUCK, pipe) as stuck,
        ):
            expect(str(await stuck), "DEADLINE_EXCEEDED")
            await _end(worker)
            return await _recover(scene, STUCK)


async def killed_worker(scene: Scene) -> str:
    """Kill the process that serves, in the middle of the traffic."""
    worker = scene.server.worker()
    async with scene.window("killed worker", lambda _model, outcome: _is_victim(outcome)):
        begun_s = time.monotonic()
        worker.send_signal(signal.SIGKILL)
        await _end(worker)
        await scene.server.wait_until_ready()
    return f"ready after {time.monotonic() - begun_s:.1f} s"


async def crash(scene: Scene) -> str:
    """End the process with a fault while it runs a model.

    No other request is in flight at that moment: the server would blame its model, too.
    """
    worker = scene.server.worker()
    with _pipe(scene) as pipe:
        await scene.traffic.hold()
        try:
            async with scene.window(
                "crash of a model", lambda model, outcome: _is_victim(outcome) or model == CRASHING
            ):
                async with _running(scene, CRASHING, pipe) as stuck:
                    worker.send_signal(signal.SIGSEGV)
                    await _end(worker)
                    scene.traffic.go_on()
                    expect((await stuck).kind, Kind.ENDED, Kind.REFUSED)
                return await _recover(scene, CRASHING)
        finally:
            scene.traffic.go_on()


async def _recover(scene: Scene, model: str) -> str:
    """Wait for the new process. After the second end, the model is quarantined, until a new version replaces it."""
    begun_s = time.monotonic()
    await scene.server.wait_until_ready()
    seconds = f"ready after {time.monotonic() - begun_s:.1f} s"
    scene.ends[model] = scene.ends.get(model, 0) + 1
    if scene.ends[model] < _MOST_ENDS:
        return seconds
    [(_, (state, error))] = (await scene.states(model)).items()
    expect((state, "quarantined" in error), ("END", True))
    version = scene.next_version()
    base = scene.server.base(model)
    old = [path for path in base.iterdir() if path.name.isdigit()]
    await asyncio.to_thread(save_slow, base / f".{version}")
    os.rename(base / f".{version}", base / str(version))
    await scene.wait_for_state(model, version, "AVAILABLE")
    for path in old:
        shutil.rmtree(path)
    scene.ends[model] = 0
    return f"{seconds}, quarantined, version {version}"


@contextlib.contextmanager
def _pipe(scene: Scene) -> Iterator[Path]:
    path = scene.server.folder / f"pipe-{time.monotonic_ns()}"
    os.mkfifo(path)
    try:
        yield path
    finally:
        path.unlink()


@contextlib.asynccontextmanager
async def _running(scene: Scene, model: str, pipe: Path) -> AsyncIterator[asyncio.Task[Outcome]]:
    """Yield a request for a run that hangs, once the run has begun.

    Its input shapes have run before, so a fault is blamed on the model instead of the shapes.
    """
    async with Connections(scene.server.address) as at:
        expect((await _write(at, model, scene.server.folder / "written", Hints())).kind, Kind.ANSWERED)
        stuck = asyncio.create_task(_write(at, model, pipe, Hints()))
        try:
            # Its head start over the second request, which waits behind the run until its deadline. After slow runs,
            # the server expects that it will be too late, and refuses it at once.
            await asyncio.wait({stuck}, timeout=_HEAD_START_S)
            second = await _write(at, model, pipe, Hints(timeout_s=_QUEUED_S))
            expect(str(second), "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
            yield stuck
        except BaseException:
            # After a failed check, a run that hangs for longer would end the process and spoil the faults that follow.
            await asyncio.to_thread(let_go, pipe)
            raise
        finally:
            await asyncio.wait({stuck}, timeout=PATIENCE_S)


async def _write(at: Connections, model: str, pipe: Path, hints: Hints) -> Outcome:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "until"
    request.inputs["path"].CopyFrom(tf.make_tensor_proto(np.array(str(pipe).encode(), object)))
    try:
        await at.call(_PREDICT, request.SerializeToString(), hints)
    except RequestError as error:
        return error.outcome
    return Outcome(Kind.ANSWERED)


def _release(pipe: Path) -> None:
    """Read what the run writes, which ends it. Blocks."""
    pipe.read_bytes()


def let_go(pipe: Path) -> None:
    """Read what the run writes, if one does. Blocks for at most a second."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if poll.poll(_LET_GO_MS):
            os.read(reader, 1 << 16)
    finally:
        os.close(reader)


async def _end(worker: psutil.Process) -> None:
    await asyncio.to_thread(worker.wait, PATIENCE_S)


async def _is_live(scene: Scene) -> bool:
    return await scene.server.get_status("/healthz") == 200


def _of_model(name: str) -> Callable[[str, Outcome], bool]:
    return lambda model, outcome: model == name and outcome.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE")


def _is_new_start(outcome: Outcome) -> bool:
    """Return whether a request may end so while no process serves. None was accepted."""
    return outcome.kind is Kind.REFUSED or outcome.code == "UNAVAILABLE"


def _is_victim(outcome: Outcome) -> bool:
    return _is_new_start(outcome) or outcome.kind is Kind.ENDED
