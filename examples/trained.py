"""Training of one example and reference outputs of its source, in a separate process, because frameworks conflict."""

import gc
import os
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from examples.example import Array, Example, Tensors, load_example


class TrainingFailed(Exception):
    """An example failed to train, or its source failed to predict."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The trained source, and its outputs for each request, in order."""

    source: Path
    requests: list[dict[str, Array]]
    answers: list[dict[str, Array]]
    seconds: float


def train_apart(name: str, folder: Path, log: Path) -> Trained:
    """Train into `folder`, and write the output to `log`. Blocks. Raises TrainingFailed."""
    spawn = get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_work, args=(sender, name, folder, log), name=f"train-{name}")
    process.start()
    sender.close()
    try:
        outcome = receiver.recv()
    except EOFError:
        process.join()
        raise TrainingFailed(f"The training process exited with status {process.exitcode}. See {log}.") from None
    finally:  # also if only this process receives the stop signal
        process.terminate()
        process.join()
    if isinstance(outcome, Trained):
        return outcome
    raise TrainingFailed(outcome)


def _work(connection: Connection, name: str, folder: Path, log: Path) -> None:
    """Send a Trained, or the error in one line, because frameworks' exceptions may not unpickle."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    try:
        connection.send(_train(load_example(name), folder))
    except Exception as error:  # any framework's exception; the log contains it
        traceback.print_exc()
        first_line = str(error).strip().partition("\n")[0]
        connection.send(f"{type(error).__name__}: {first_line}")


def _train(example: Example, folder: Path) -> Trained:
    # A collection traverses all objects of a framework. At the default threshold, they take a quarter of its import.
    gc.set_threshold(100_000)
    # Always use the CPU. With libtpu installed, JAX would search for a TPU.
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **example.environment})
    started_s = time.monotonic()
    source = example.train(folder)
    seconds = time.monotonic() - started_s
    requests = example.requests()
    answers = [_in_numpy(example.answer(source, request)) for request in requests]
    return Trained(source, requests, answers, seconds)


def _in_numpy(tensors: Tensors) -> dict[str, Array]:
    """Convert to numpy, because unpickling a framework's own arrays would import the framework."""
    return {name: np.asarray(value) for name, value in tensors.items()}
