"""Checks that a program runs in `.oip-clients`, whose outcomes pytest reads from its standard output.

The environment has no pytest, and none of our packages. This module therefore needs only numpy.
"""

import argparse
import asyncio
import inspect
import json
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
TIMEOUT_S = 60.0

# The served models: all dtypes, rows of 16 numbers, four labels by the length of a string, and one with two versions.
KINDS, SIMPLE, LABELS, HALF = "kinds", "simple", "labels", "half"
HALF_VERSIONS = ("123", "124")
# The version of the others.
VERSION = "1"

# Prefix of the shared memory keys that the server accepts.
SHARED_MEMORY_PREFIX = "tpuserve_test"

# A value of each kind that every client reads back. `echo_DTYPE` is the signature's name.
ECHOED: Mapping[str, Array] = {
    "bool": np.array([True, False]),
    **{
        name: np.array([np.iinfo(name).min, 1, np.iinfo(name).max], name)
        for name in ("int8", "int16", "int32", "int64")
    },
    **{name: np.array([0, 1, np.iinfo(name).max], name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: np.array([-1.5, 0, 65504], name) for name in ("float16", "float32", "float64")},
    "string": np.array([b"", b"\xff\x00", "größe".encode()], object),
}


@dataclass(frozen=True, slots=True)
class Server:
    """The addresses of a server, as `host:port`."""

    grpc: str
    rest: str


Check: TypeAlias = Callable[[Server], Awaitable[None] | None]


def run_checks(namespace: Mapping[str, object]) -> None:
    """Run every `check_...` function, and print its traceback, or "", by name as a JSON document.

    The addresses are the arguments of the program.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("grpc")
    parser.add_argument("rest")
    server = Server(**vars(parser.parse_args()))
    outcomes = {name: _run(check, server) for name, check in namespace.items() if name.startswith("check_")}
    print(json.dumps(outcomes))


def _run(check: Any, server: Server) -> str:  # noqa: ANN401 - a Check, found by its name
    try:
        outcome = check(server)
        if inspect.isawaitable(outcome):
            asyncio.run(_await(outcome))
    except Exception:  # The other checks still run.
        return traceback.format_exc()
    return ""


async def _await(outcome: Awaitable[None]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await outcome


def same(got: Array, sent: Array) -> None:
    """Assert equal dtypes, shapes and values, NaN included."""
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape), f"{got.dtype}{got.shape} != {sent.dtype}{sent.shape}"
    assert got.tobytes() == sent.tobytes() if got.dtype != object else got.tolist() == sent.tolist(), f"{got} != {sent}"


@contextmanager
def refused(error: type[Exception], *parts: str) -> Iterator[None]:
    """Assert that the block raises `error` with a text that contains all `parts`."""
    try:
        yield
    except error as caught:
        text = str(caught)
    else:
        raise AssertionError(f"no {error.__name__} with {parts}")
    absent = [part for part in parts if part not in text]
    assert not absent, f"{absent} not in {text!r}"
