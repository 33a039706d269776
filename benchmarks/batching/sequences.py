"""Compare ways to batch texts of many lengths: padded to buckets, padded to the longest length, or unbatched.

Run: `.venv/bin/python -m benchmarks sequences` (about a minute). In one process, without a front-end.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

# Hide TensorFlow's startup messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.batching.sequence_model import LONGEST, random_texts, write_model
from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.observe.metrics.measurements import Measurements
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import missing_file

TEXTS = 1000
IN_FLIGHT = 64
BATCHES = (1, 2, 4, 8, 16, 32)
ALONE = "unbatched, in order of arrival"
# Options for sharing batches. Omitted options are the same for all ways.
WAYS = {
    ALONE: LoadingOptions(enable_batching=False),
    "batches of equal length": LoadingOptions(
        enable_batching=True, parameters=BatchingParameters(allowed_batch_sizes=BATCHES)
    ),
    f"all padded to {LONGEST}": LoadingOptions(
        enable_batching=True, parameters=BatchingParameters(allowed_batch_sizes=BATCHES, sequence_buckets=(LONGEST,))
    ),
    "sequence buckets": LoadingOptions(
        enable_batching=True,
        parameters=BatchingParameters(allowed_batch_sizes=BATCHES, sequence_buckets=(16, 32, 64, 128, LONGEST)),
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """The best round of one way, and the largest difference of its outputs from those of unbatched texts."""

    name: str
    texts_per_s: float
    difference: float


class Loaded:
    """The model, loaded with the options of one way."""

    def __init__(self, path: Path, options: LoadingOptions) -> None:
        """Load and warm up the model. Blocks."""
        executor = TensorFlowExecutor(TensorFlowOptions())
        self._loader = VersionLoader(
            LocalStorage(missing_file), executor, options, DeviceServices(SystemClock(), Measurements())
        )
        self._version = self._loader.load(AspiredVersion(ServableId("texts", 1), VersionLocation(str(path))))

    async def run(self, texts: Sequence[Array]) -> list[Array]:
        """Run every text once with IN_FLIGHT in flight, and return the classes of each."""
        waiting = iter(enumerate(texts))
        answers: list[Array] = [np.empty(0)] * len(texts)

        async def work() -> None:
            for index, text in waiting:
                answers[index] = await self._classify(text)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return answers

    async def _classify(self, ids: Array) -> Array:
        batcher = self._version.batcher
        future = asyncio.get_running_loop().create_future()
        shareable = "serving_default" in batcher.options
        batcher.submit(Task("serving_default", ("classes",), {"ids": ids}, 1, Deadline.never(), future, shareable))
        outcome = await future
        if isinstance(outcome, ServingError):
            raise outcome
        classes: Array = outcome["classes"]
        return classes

    def close(self) -> None:
        """Stop the model's threads."""
        self._loader.unload(self._version)


def measure(path: Path, texts: Sequence[Array], rounds: int) -> list[Way]:
    """Measure each way in turn, `rounds` times. Return its best rate and its difference from unbatched outputs."""
    loaded = {name: Loaded(path, options) for name, options in WAYS.items()}
    best_s = dict.fromkeys(WAYS, float("inf"))
    answers: dict[str, list[Array]] = {}
    try:
        for _ in range(rounds):
            for name, model in loaded.items():
                started_s = time.perf_counter()
                answers[name] = asyncio.run(model.run(texts))
                best_s[name] = min(best_s[name], time.perf_counter() - started_s)
    finally:
        for model in loaded.values():
            model.close()
    return [Way(name, len(texts) / best_s[name], _difference(answers[name], answers[ALONE])) for name in WAYS]


def _difference(some: Sequence[Array], others: Sequence[Array]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))


def show(ways: Sequence[Way], console: Console) -> None:
    """Print a table with rates and ratios. Noise on the machine affects ratios less than rates."""
    table = Table(title=f"{TEXTS} texts of {IN_FLIGHT} in flight, best of alternating rounds")
    for column in ("way", "texts/s", "relative to unbatched", "largest difference"):
        table.add_column(column, justify="left" if column == "way" else "right")
    alone = next(way for way in ways if way.name == ALONE)
    for way in ways:
        ratio = way.texts_per_s / alone.texts_per_s
        table.add_row(way.name, f"{way.texts_per_s:,.0f}", f"{ratio:.2f}", f"{way.difference:.1g}")
    console.print(table)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Number of rounds. The best one counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def main(rounds: int, as_json: bool) -> None:
    """Compare ways to batch texts of many lengths."""
    with tempfile.TemporaryDirectory() as directory:
        ways = measure(write_model(Path(directory, "texts", "1")), random_texts(TEXTS), rounds)
    if as_json:
        click.echo(json.dumps([asdict(way) for way in ways], indent=2))
    else:
        show(ways, Console())
