"""CPU of a request with an image of 602 KB beyond that of a request with one row, in copies of 602 KB.

The difference has all copies between the socket and the model: those of the kernel, of this server and of the runtime,
and for JSON the parse.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import image_model
from benchmarks.harness.targets import Target, model_server, write_image
from benchmarks.overhead.call_turns import check_call, load_call
from benchmarks.overhead.calls import IMAGE, ROW, Call, calls

# Arrays that a copy goes through in turn: more than the caches of a core hold.
_ARRAYS: Final = 64
_COPIES: Final = 20
_WARM_UP_S: Final = 1


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Microseconds of CPU: of a request of each size, and of one copy of 602 KB. Medians of the turns."""

    name: str
    row_us: float
    image_us: float
    copy_us: float

    @property
    def copies(self) -> float:
        """The difference between the sizes, in copies."""
        return (self.image_us - self.row_us) / self.copy_us


def measure(
    mlp_base: Path, scratch: Path, *, rounds: int, seconds: int, progress: Callable[[str], None]
) -> list[CopyCost]:
    """Load a server with each call of each size in turn, with one request in flight.

    Raises ServerDied, ToolFailed and WrongAnswer.
    """
    config = write_image(mlp_base, scratch)
    copies_us: list[float] = []
    found_us: dict[tuple[str, str], list[float]] = {}
    with model_server(mlp_base, scratch, f"--model_config_file={config}") as server:
        listed = calls()
        for call in listed:
            check_call(call, server[call.protocol].port)
            load_call(call, server[call.protocol], _WARM_UP_S, scratch, in_flight=1)
        for number in range(rounds):
            copies_us.append(copy_us())
            for call in listed:
                progress(f"{call.name} of {call.size}, turn {number + 1} of {rounds}")
                spent_us = _cpu_us(call, server[call.protocol], seconds, scratch)
                found_us.setdefault(call.key, []).append(spent_us)
        server["rest"].tree.check_alive()
    medians = {key: statistics.median(values) for key, values in found_us.items()}
    copied_us = statistics.median(copies_us)
    names = [name for size, name in medians if size == IMAGE]
    return [CopyCost(name, medians[ROW, name], medians[IMAGE, name], copied_us) for name in names]


def copy_us() -> float:
    """Return the CPU of a copy of 602 KB whose source and target are in no cache of the core, in microseconds."""
    arrays = [image_model.example() for _ in range(_ARRAYS)]
    spent_us = []
    for _ in range(_COPIES):
        started_ns = time.thread_time_ns()
        for source, target in zip(arrays[::2], arrays[1::2], strict=True):
            np.copyto(target, source)
        spent_us.append((time.thread_time_ns() - started_ns) / 1e3 / (_ARRAYS / 2))
    return statistics.median(spent_us)


def _cpu_us(call: Call, target: Target, seconds: int, scratch: Path) -> float:
    before_s = target.tree.cpu_seconds()
    load = load_call(call, target, seconds, scratch, in_flight=1)
    return 1e6 * (target.tree.cpu_seconds() - before_s) / load.requests
