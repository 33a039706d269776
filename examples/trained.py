"""Training one example, and asking its source, in a process of its own: frameworks do not share one gladly."""

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
    """An example did not train, or its source did not answer."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What training left, and what the source answers to each request, in order."""

    source: Path
    requests: list[dict[str, Array]]
    answers: list[dict[str, Array]]
    seconds: float


def train_apart(name: str, folder: Path, log: Path) -> Trained:
    """Train into `folder`, with what it prints in `log`. Blocks. Raises TrainingFailed."""
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_work, args=(theirs, name, folder, log), name=f"train-{name}")
    process.start()
    theirs.close()
    try:
        outcome = ours.recv()
    except EOFError:
        process.join()
        raise TrainingFailed(f"the training process ended with status {process.exitcode}") from None
    finally:  # also when this process is asked to stop, and the other one was not
        process.terminate()
        process.join()
    if isinstance(outcome, Trained):
        return outcome
    raise TrainingFailed(outcome)


def _work(connection: Connection, name: str, folder: Path, log: Path) -> None:
    """Send a Trained, or what went wrong in one line: errors of frameworks do not travel."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    try:
        connection.send(_train(load_example(name), folder))
    except Exception as error:  # of any framework; the log has all of it
        traceback.print_exc()
        first_line = str(error).strip().partition("\n")[0]
        connection.send(f"{type(error).__name__}: {first_line}")


def _train(example: Example, folder: Path) -> Trained:
    # On the CPU, wherever this runs: with libtpu installed, JAX would look for a TPU.
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **example.environment})
    started_s = time.monotonic()
    source = example.train(folder)
    seconds = time.monotonic() - started_s
    requests = example.requests()
    answers = [_in_numpy(example.answer(source, request)) for request in requests]
    return Trained(source, requests, answers, seconds)


def _in_numpy(tensors: Tensors) -> dict[str, Array]:
    """A framework's own arrays would have whoever reads them import the framework."""
    return {name: np.asarray(value) for name, value in tensors.items()}
