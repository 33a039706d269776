"""The question that every client asks, and the line with its answer that every client's program prints.

The programs run in different environments. This module therefore imports nothing except numpy.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Outputs: TypeAlias = Mapping[str, Array]

MODEL = "iris"
INPUT, PROBABILITIES, SPECIES = "measures", "probabilities", "species"
# Centimetres of three irises, float32 [3, 4].
MEASURES: Array = np.array([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5], [6.3, 3.3, 6.0, 2.5]], np.float32)

# The same model for the inputs that genai-perf sends: a text with the four measures.
TEXT_MODEL = "iris_text"
TEXT_INPUT, TEXT_OUTPUT = "text_input", "text_output"
TEXTS = tuple(" ".join(map(str, row)) for row in MEASURES.tolist())


@dataclass(frozen=True, slots=True)
class Server:
    """The addresses of a server, as `host:port`."""

    grpc: str
    rest: str


Ask: TypeAlias = Callable[[Server], Outputs]


def ask_all(clients: Mapping[str, Ask]) -> None:
    """Ask with each client, and print one line of JSON for each: its name, and its outputs or its error.

    The addresses are the arguments of the program.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("grpc", help="Address of the gRPC port, host:port.")
    parser.add_argument("rest", help="Address of the REST port, host:port.")
    server = Server(**vars(parser.parse_args()))
    for client, ask in clients.items():
        print(json.dumps({"client": client, **_answer(ask, server)}), flush=True)


def _answer(ask: Ask, server: Server) -> dict[str, object]:
    try:
        outputs = ask(server)
    except Exception as error:  # Each client has its own errors. The other clients still ask.
        return {"error": f"{type(error).__name__}: {error}"}
    return {"outputs": {name: _to_json(array) for name, array in outputs.items()}}


def _to_json(array: Array) -> object:
    if array.dtype.kind == "f":
        return array.astype(np.float32).tolist()
    return [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel().tolist()]
