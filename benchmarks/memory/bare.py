"""Processes without a server: Python, and each runtime alone with the model."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.harness.process_tree import ServerDied

_SESSION: Final = """
import numpy as np, tensorflow as tf
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    loaded = tf.compat.v1.saved_model.load(session, ["serve"], model)
    signature = loaded.signature_def["serving_default"]
    run = lambda x: session.run(signature.outputs["y"].name, {signature.inputs["x"].name: x})
    run(np.zeros((1, 64), np.float32))
    wait()
"""
_PROGRAM: Final = """
import json, pathlib, jax, numpy as np
from jax import export
jax.config.update("jax_platforms", "cpu")
folder = pathlib.Path(model, "assets.extra", "tpuserve")
part = json.loads((folder / "manifest.json").read_text())["device"]["parts"]["serving_default"]
runs = []
for program in part["programs"]:
    exported = export.deserialize(bytearray(pathlib.Path(model, program["file"]).read_bytes()))
    arguments = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in exported.in_avals]
    runs.append(jax.jit(exported.call).lower(*arguments).compile())
    jax.block_until_ready(runs[-1](*[np.zeros(one.shape, one.dtype) for one in arguments]))
wait()
"""
_LITE: Final = """
import pathlib
from ai_edge_litert.interpreter import Interpreter
interpreter = Interpreter(str(pathlib.Path(model, "model.tflite")))
interpreter.get_signature_runner("serving_default")
interpreter.allocate_tensors()
interpreter.invoke()
wait()
"""
PROGRAMS: Final = {
    "Python with numpy": "import numpy\nwait()",
    "import tensorflow": "import tensorflow\nwait()",
    "TensorFlow's session": _SESSION,
    "JAX's programs": _PROGRAM,
    "LiteRT's interpreter": _LITE,
}
_WAIT: Final = """
import sys
model = sys.argv[1]
def wait():
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that is ready, and the CPU time of its start."""

    process: psutil.Process
    start_cpu_s: float


@contextmanager
def running(name: str, version: Path) -> Iterator[Ready]:
    """Run one of PROGRAMS on the model in `version` until the end of the block.

    Raises:
        ServerDied: the program failed. The message has its output.
    """
    command = [sys.executable, "-c", _WAIT + PROGRAMS[name], str(version)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise ServerDied(f"The program {name!r} failed")
        try:
            found = psutil.Process(process.pid)
            yield Ready(found, sum(found.cpu_times()[:2]))
        finally:
            process.kill()
