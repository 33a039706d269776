"""Upper bound for serving device programs: JAX itself calls a program in a loop, without a server.

`program_loop.py VERSION_DIR [cpu|gpu|tpu]` prints `ready`. For each line `ROWS SECONDS` on standard input, it prints
the rows per second of a loop of the program for ROWS rows. The time includes fetching the outputs.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from safetensors.numpy import load_file

MANIFEST = Path("assets.extra", "tpuserve", "manifest.json")


class ProgramLoop:
    """The programs of a version's default signature, whose inputs have no free dimension except the rows."""

    def __init__(self, version: Path, device_kind: str) -> None:
        jax.config.update("jax_platforms", "cuda" if device_kind == "gpu" else device_kind)
        device = json.loads((version / MANIFEST).read_text())["device"]
        part = device["parts"][device["signatures"]["serving_default"]["part"]]
        weights = load_file(version / device["weights"])
        self._version = version
        self._weights = [jax.device_put(weights[name]) for name in part["weights"]]
        self._files = {program["batch_size"]: program["file"] for program in part["programs"]}
        self._count = len(part["inputs"])

    def rate(self, rows: int, seconds: float) -> float:
        """Return the rows per second of sequential calls, without the first call."""
        program = export.deserialize(bytearray((self._version / self._files[rows]).read_bytes()))
        random = np.random.default_rng(0)
        inputs = [random.random(aval.shape).astype(aval.dtype) for aval in program.in_avals[: self._count]]
        with jax.enable_x64(True):
            compiled: Any = jax.jit(program.call).lower(*inputs, *self._weights).compile()
            jax.device_get(compiled(*inputs, *self._weights))
            began_s = time.monotonic()
            calls = 0
            while (spent_s := time.monotonic() - began_s) < seconds:
                jax.device_get(compiled(*inputs, *self._weights))
                calls += 1
        return rows * calls / spent_s


def main() -> None:
    loop = ProgramLoop(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cpu")
    print("ready", flush=True)
    for line in sys.stdin:
        rows, seconds = line.split()
        print(loop.rate(int(rows), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
