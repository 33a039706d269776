"""Upper bound for serving device programs: JAX itself calls a program in a loop, without a server.

`program_loop.py VERSION_DIR [cpu|gpu|tpu]` prints `ready`. For each line `ROWS SECONDS` on standard input, it prints
the rows per second of a loop of the program for ROWS rows. The time includes fetching the outputs.
"""

import functools
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from tpuserve_server.executors.pjrt.executor import map_weights

MANIFEST = Path("assets.extra", "tpuserve", "manifest.json")


class ProgramLoop:
    """The programs of a version's default signature, whose inputs have no free dimension except the rows."""

    def __init__(self, version: Path, device_kind: str) -> None:
        jax.config.update("jax_platforms", "cuda" if device_kind == "gpu" else device_kind)
        device = json.loads((version / MANIFEST).read_text())["device"]
        part = device["parts"][device["signatures"]["serving_default"]["part"]]
        weights = map_weights(version / device["weights"])
        self._version = version
        self._weights = [jax.device_put(weights[name]) for name in part["weights"]]
        self._files = {program["batch_size"]: program["file"] for program in part["programs"]}
        self._count = len(part["inputs"])
        self._compiled = functools.cache(self._compile)

    def rate(self, rows: int, seconds: float, in_flight: int = 1) -> float:
        """Return the rows per second of calls in a loop, without the first call, with `in_flight` calls at a time."""
        compiled, inputs = self._compiled(rows)

        def start() -> Any:  # noqa: ANN401 - the outputs of a compiled program
            outputs = compiled(*inputs, *self._weights)
            for output in outputs:
                output.copy_to_host_async()
            return outputs

        with jax.enable_x64(True):
            return rows * calls_per_second(start, jax.device_get, seconds, in_flight)

    def _compile(self, rows: int) -> tuple[Any, list[np.ndarray[Any, Any]]]:
        """Return the program for `rows` rows, and random inputs."""
        program = export.deserialize(bytearray((self._version / self._files[rows]).read_bytes()))
        random = np.random.default_rng(0)
        inputs = [random.random(aval.shape).astype(aval.dtype) for aval in program.in_avals[: self._count]]
        with jax.enable_x64(True):
            return jax.jit(program.call).lower(*inputs, *self._weights).compile(), inputs


def calls_per_second(
    start: Callable[[], Any], finish: Callable[[Any], object], seconds: float, in_flight: int
) -> float:
    """Return the rate of calls in a loop. `finish` waits for the outputs of the oldest of `in_flight` started calls."""
    finish(start())
    waiting: deque[Any] = deque()
    calls = 0
    began_s = time.monotonic()
    while (spent_s := time.monotonic() - began_s) < seconds:
        waiting.append(start())
        if len(waiting) == in_flight:
            finish(waiting.popleft())
            calls += 1
    while waiting:
        finish(waiting.popleft())
    return calls / spent_s


def main() -> None:
    loop = ProgramLoop(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
    print("ready", flush=True)
    for line in sys.stdin:
        rows, seconds = line.split()
        print(loop.rate(int(rows), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
