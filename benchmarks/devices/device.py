"""Measure the gain from several batches in flight on a device, and how models share a device.

Prints two tables, both of the real batcher without a wire. `overlap` keeps full batches of 224 x 224 x 3 images
waiting. It runs them on a device that takes `t0 + a * rows` and no CPU, and on TensorFlow in a separate thread. It
prints the rows per second with 1, 2 and 3 batches in flight, and with two batch threads. `sharing` runs only
TensorFlow. It prints the latency of a light model next to three busy ones, by number of slots. It also prints the rates
of two busy models of weights 1 and 3.

    python -m benchmarks device            # about 2 minutes
    python -m benchmarks device --quick
"""

import argparse
import asyncio
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.virtual_time import SILENT_METRICS
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.device_share import DeviceShare
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import InFlight, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors, TensorSpec

FLOAT = np.dtype(np.float32)
IMAGE = (224, 224, 3)
SIGNATURE = "serving_default"
BATCH = 16
# Seconds from a response to the next request of a client.
ROUND_TRIP_S = 0.001
_CLOCK = SystemClock()


@dataclass
class InOrder:
    """A servable that executes its runs in order on its own thread, with up to `max_in_flight` dispatched."""

    signatures: Mapping[str, Signature]
    run: Callable[[str, Tensors, Sequence[str]], Tensors]
    max_in_flight: int
    device: str = "in order"
    unrepeatable: str = ""
    never_blocks: bool = False
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Submit the run to the thread."""
        return self._thread.submit(self.run, signature_name, inputs, output_names)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown()


def sleeping(t0_s: float, per_row_s: float, max_in_flight: int) -> InOrder:
    """Return a device that takes time but no CPU, like an accelerator."""

    def run(signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        x = inputs["x"]
        time.sleep(t0_s + per_row_s * len(x))
        return {"y": np.zeros((len(x), 10), np.float32)}

    spec = TensorSpec("x", FLOAT, (None, *IMAGE), "x:0")
    signature = Signature(SIGNATURE, {"x": spec}, {"y": TensorSpec("y", FLOAT, (None, 10), "y:0")}, "")
    return InOrder({SIGNATURE: signature}, run, max_in_flight)


def tensorflow_model(folder: Path, *, pooled: int, channels: int) -> Servable:
    """Return a model from images to ten numbers: pooling to `pooled` pixels per side, then two convolutions of
    `channels`.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    from tpuserve_server.executors.tensorflow import TensorFlowOptions
    from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

    module = tf.Module()
    module.first = tf.Variable(tf.random.normal([3, 3, 3, channels]))
    module.second = tf.Variable(tf.random.normal([3, 3, channels, 10]))

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        size = IMAGE[0] // pooled
        x = tf.nn.avg_pool2d(x, size, size, "VALID")
        x = tf.nn.relu(tf.nn.conv2d(x, module.first, 1, "SAME"))
        return {"y": tf.reduce_mean(tf.nn.conv2d(x, module.second, 1, "SAME"), [1, 2])}

    spec = tf.TensorSpec([None, *IMAGE], tf.float32, name="x")
    signature = tf.function(serve, input_signature=[spec])
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: signature})
    servable = TensorFlowExecutor(TensorFlowOptions()).load(ServableId("m", 1), VersionFiles(folder))
    for rows in (1, BATCH):
        servable.dispatch(SIGNATURE, {"x": np.zeros((rows, *IMAGE), np.float32)}, ("y",)).result()
    return servable


@dataclass
class Model:
    """A batcher, and the latencies of its responses."""

    name: str
    servable: Servable
    batcher: Batcher
    latencies_s: list[float] = field(default_factory=list)

    async def ask(self, x: Tensors) -> None:
        """Send one request of one row, and record its latency."""
        future = asyncio.get_running_loop().create_future()
        begun_s = time.monotonic()
        self.batcher.submit(Task(SIGNATURE, ("y",), x, 1, Deadline.never(), future, True))
        outcome = await future
        if isinstance(outcome, ServingError):
            raise outcome
        self.latencies_s.append(time.monotonic() - begun_s)


def model(name: str, servable: Servable, device: DeviceShare, *, weight: float = 1.0, threads: int = 1) -> Model:
    """Return `servable` behind a batcher that shares `device`."""
    batcher = Batcher(
        BatchedVersion(ServableId(name, 1), servable, {SIGNATURE: BatchingOptions(BATCH, (1, 2, 4, 8, BATCH))}),
        BatchingParameters(max_enqueued_batches=1000, num_batch_threads=threads, scheduling_weight=weight),
        DeviceServices(_CLOCK, SILENT_METRICS, device=device),
    )
    return Model(name, servable, batcher)


def measure(
    models: Sequence[Model], clients: Callable[[Model], Sequence[Callable[[float], Awaitable[None]]]], s: float
) -> None:
    """Let every client send requests for `s` seconds, then stop the batchers."""

    async def play() -> None:
        until_s = time.monotonic() + s
        await asyncio.gather(*(client(until_s) for one in models for client in clients(one)))

    try:
        asyncio.run(play())
    finally:
        for one in models:
            one.batcher.stop()


async def ask_on(one: Model, x: Tensors, pause_s: float, until_s: float) -> None:
    """Send one request after the other, with a pause of `pause_s` between them."""
    while time.monotonic() < until_s:
        await one.ask(x)
        if pause_s:
            await asyncio.sleep(pause_s)


def rows_per_s(servable: Servable, threads: int, seconds: float, batches: int) -> float:
    """Return the rows per second with the clients of `batches` batches."""
    x = {"x": np.random.default_rng(1).random((1, *IMAGE), np.float32)}
    one = model("m", servable, DeviceShare(threads), threads=threads)
    measure([one], lambda busy: [functools.partial(ask_on, busy, x, ROUND_TRIP_S)] * (batches * BATCH), seconds)
    return len(one.latencies_s) / seconds


def overlap(tensorflow: Servable, seconds: float, repeats: int) -> list[dict[str, float | str]]:
    """Return the rows per second by batches in flight, as medians of interleaved repeats.

    With the clients of two batches, the next batch fills while one runs. With those of four, full batches wait.
    """
    devices: dict[str, Callable[[int], Servable]] = {
        "sleeps 2 ms + 0.2 ms per row": functools.partial(sleeping, 0.002, 0.0002),
        "sleeps 4 ms + 0.4 ms per row": functools.partial(sleeping, 0.004, 0.0004),
        "sleeps 20 ms + 2 ms per row": functools.partial(sleeping, 0.020, 0.002),
        "TensorFlow, separate thread": lambda ahead: InOrder(
            tensorflow.signatures, lambda *run: tensorflow.dispatch(*run).result(), ahead
        ),
    }
    table: list[dict[str, float | str]] = []
    for (name, make), batches in itertools.product(devices.items(), (2, 4)):
        ways: dict[str, Callable[[], float]] = {
            f"{ahead} in flight": functools.partial(_in_flight, make, ahead, seconds, batches) for ahead in (1, 2, 3)
        }
        if name.startswith("TensorFlow"):
            ways["in dispatch"] = functools.partial(rows_per_s, tensorflow, 1, seconds, batches)
            ways["in dispatch, 2 threads"] = functools.partial(rows_per_s, tensorflow, 2, seconds, batches)
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, run in ways.items():
                rates[way].append(run())
        row: dict[str, float | str] = {"device": name, "clients": f"{batches} batches"}
        row.update({way: statistics.median(rate) for way, rate in rates.items()})
        table.append(row)
    return table


def _in_flight(make: Callable[[int], Servable], ahead: int, seconds: float, batches: int) -> float:
    servable = make(ahead)
    try:
        return rows_per_s(servable, 1, seconds, batches)
    finally:
        servable.close()


def sharing(heavy: Servable, light: Servable, seconds: float) -> list[dict[str, float | str]]:
    """Return a light model's latency next to three busy models, by number of slots."""
    x = {"x": np.random.default_rng(1).random((1, *IMAGE), np.float32)}
    table: list[dict[str, float | str]] = []
    cores = os.cpu_count() or 1
    for slots in sorted({1, cores, 100}):
        device = DeviceShare(slots)
        busy = [model(f"busy{index}", heavy, device) for index in range(3)]
        rare = model("light", light, device)
        measure(
            [rare, *busy],
            lambda one: (
                [functools.partial(ask_on, one, x, 0.02 if one.name == "light" else 0.0)]
                * (1 if one.name == "light" else 4 * BATCH)
            ),
            seconds,
        )
        latencies = sorted(rare.latencies_s)
        table.append(
            {
                "slots": "no limit" if slots == 100 else str(slots),
                "light p50 ms": statistics.median(latencies) * 1e3,
                "light p99 ms": latencies[int(len(latencies) * 0.99)] * 1e3,
                "busy rows/s": sum(len(one.latencies_s) for one in busy) / seconds,
            }
        )
    return table


def weights(heavy: Servable, seconds: float) -> list[dict[str, float | str]]:
    """Return the rates of two busy models of weights 1 and 3 on one slot."""
    x = {"x": np.random.default_rng(1).random((1, *IMAGE), np.float32)}
    device = DeviceShare(1)
    models = [model("one", heavy, device), model("three", heavy, device, weight=3.0)]
    measure(models, lambda one: [functools.partial(ask_on, one, x, 0.0)] * (4 * BATCH), seconds)
    one, three = (len(each.latencies_s) / seconds for each in models)
    return [{"weights": "1 : 3", "rows/s of 1": one, "rows/s of 3": three, "ratio": three / one}]


def print_table(rows: Sequence[Mapping[str, float | str]]) -> None:
    """Print a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    print("|", " | ".join(columns), "|")
    print("|", " | ".join("---" for _ in columns), "|")
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        print("|", " | ".join(cell if isinstance(cell, str) else f"{cell:.4g}" for cell in cells), "|")
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="Measure each point once for 1 s. Figures are approximate."
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON document on standard output.")
    arguments = parser.parse_args()
    seconds, repeats = (1.0, 1) if arguments.quick else (3.0, 3)
    with tempfile.TemporaryDirectory() as folder:
        heavy = tensorflow_model(Path(folder, "heavy"), pooled=56, channels=64)
        light = tensorflow_model(Path(folder, "light"), pooled=7, channels=4)
        tables = {
            "overlap": overlap(heavy, seconds, repeats),
            "sharing": sharing(heavy, light, 2 * seconds),
            "weights": weights(heavy, 2 * seconds),
        }
        heavy.close()
        light.close()
    if arguments.json:
        print(json.dumps(tables))
        return
    for table in tables.values():
        print_table(table)
