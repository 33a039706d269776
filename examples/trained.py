"""Training one example, and asking its source, in a process of its own: frameworks do not share one gladly."""

import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from examples.example import Array, Tensors, load_example


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
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_train, name, folder, log).result()
        except BrokenProcessPool as error:
            raise TrainingFailed("the training process died") from error


def _train(name: str, folder: Path, log: Path) -> Trained:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    example = load_example(name)
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", **example.environment})
    started_s = time.monotonic()
    try:
        source = example.train(folder)
        seconds = time.monotonic() - started_s
        requests = example.requests()
        answers = [_in_numpy(example.answer(source, request)) for request in requests]
    except Exception as error:  # of any framework; the log has all of it, and errors of frameworks do not travel
        traceback.print_exc()
        first_line = str(error).strip().partition("\n")[0]
        raise TrainingFailed(f"{type(error).__name__}: {first_line}") from None
    return Trained(source, requests, answers, seconds)


def _in_numpy(tensors: Tensors) -> dict[str, Array]:
    """A framework's own arrays would have whoever reads them import the framework."""
    return {name: np.asarray(value) for name, value in tensors.items()}
