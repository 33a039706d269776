"""Requests to a served version in the ways of users: gRPC and REST with the client, and REST with plain JSON."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from examples.difference import Differs, largest_difference
from tests.strangers import json_requests
from tests.strangers.line import Line, Verdict
from tests.strangers.stranger import Answers, Exchange, Stranger, Tensors
from tpuserve_client import Client, TpuserveError
from tpuserve_server import RunningServer

# Number of concurrent requests: enough that the server combines several in one batch.
AT_ONCE = 8
# Takes signature, inputs and expected outputs, and returns the served outputs.
Predict: TypeAlias = Callable[[str, Tensors, Tensors], Tensors]


class Unreadable(Exception):
    """A request had no response that can be compared."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A way to send requests. `dtypes` is False if its responses carry none."""

    name: str
    predict: Predict
    dtypes: bool


def predict_all(stranger: Stranger, source: str, model: str, answers: Answers, server: RunningServer) -> Iterator[Line]:
    """Yield a line for each signature and protocol. Blocks for each."""
    with Client(server.grpc_address) as grpc, Client(server.rest_address) as rest:

        def by(client: Client) -> Predict:
            return lambda signature, inputs, _: client.predict(
                model, inputs, signature_name=signature, timeout_s=json_requests.TIMEOUT_S
            )

        def by_json(signature: str, inputs: Tensors, expected: Tensors) -> Tensors:
            return json_requests.predict(server.rest_address, model, signature, inputs, expected, rows=stranger.rows)

        protocols = [
            Protocol("gRPC", by(grpc), True),
            Protocol("REST", by(rest), True),
            Protocol("JSON", by_json, False),
        ]
        for name, exchanges in answers.items():
            for protocol in protocols:
                yield _predict(stranger, source, name, exchanges, protocol)
        if stranger.outside:
            for protocol in protocols:
                yield _send_outside(stranger, source, protocol)


def _send_outside(stranger: Stranger, source: str, protocol: Protocol) -> Line:
    """Send shapes outside of the signature, which the version has to refuse."""
    signature, started_s = "serving_default", time.monotonic()
    inputs = {name: np.ones(shape, np.float32) for name, shape in stranger.outside.items()}
    try:
        protocol.predict(signature, inputs, {"y": np.empty(0, np.float32)})
    except Exception as error:  # as for other requests
        verdict, reason = Verdict.REFUSED if "has shape" in str(error) else Verdict.WRONG, str(error)
    else:
        verdict, reason = Verdict.WRONG, f"the version answers {dict(stranger.outside)}"
    seconds = time.monotonic() - started_s
    return Line(stranger.name, source, f"{signature}, outside", protocol.name, verdict, reason, seconds=seconds)


def _predict(stranger: Stranger, source: str, name: str, exchanges: Sequence[Exchange], protocol: Protocol) -> Line:
    """Send the requests of one signature over one protocol. The reason of the line is the worst error."""
    tolerance, started_s = stranger.tolerance, time.monotonic()
    signature = name.partition(":")[0]
    single = [row for exchange in exchanges for row in _rows(exchange)] if stranger.rows else list(exchanges)

    def compare(exchange: Exchange) -> float | Exception:
        inputs, expected = exchange
        try:
            served = protocol.predict(signature, inputs, expected)
            return largest_difference(
                expected, dict(served), tolerance.absolute, tolerance.relative, dtypes=protocol.dtypes
            )
        except (Differs, TpuserveError, json_requests.Refused) as error:
            return error
        except Exception as error:  # a crashed server or a malformed response makes a line of the table
            return Unreadable(f"{type(error).__name__}: {error}")

    def compare_in_turn(exchanges: Sequence[Exchange]) -> Iterator[float | Exception]:
        """Stop after the first request without a response: a hanging server takes the whole timeout for each."""
        for one in exchanges:
            yield (result := compare(one))
            if isinstance(result, Exception) and not isinstance(result, Differs):
                return

    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = {
            "alone": list(compare_in_turn(single)) if stranger.rows else [],
            "together": list(compare_in_turn(exchanges)),
            "at_once": list(threads.map(compare, single)),
        }
    errors = [(step, one) for step, every in results.items() for one in every if isinstance(one, Exception)]
    verdict, reason = _judge(stranger, protocol, *max(errors, key=_weight)) if errors else (Verdict.RIGHT, "")
    return Line(
        stranger.name, source, name, protocol.name, verdict, reason, str(tolerance),
        **{step: _largest(every) for step, every in results.items()}, seconds=time.monotonic() - started_s,
    )  # fmt: skip


def _weight(error: tuple[str, Exception]) -> float:
    """Rank an error. A response that cannot be compared ranks above any difference."""
    largest = error[1].largest if isinstance(error[1], Differs) else None
    return math.inf if largest is None else largest


def _largest(results: Sequence[float | Exception]) -> float | None:
    """Return the largest difference, or None without a comparable response."""
    known = (one.largest if isinstance(one, Differs) else one for one in results)
    return max((one for one in known if isinstance(one, float)), default=None)


def _judge(stranger: Stranger, protocol: Protocol, step: str, error: Exception) -> tuple[Verdict, str]:
    """Return the verdict on the worst error. An expected refusal is not an error of the server."""
    expected = stranger.rest_refusal and protocol.name != "gRPC" and not isinstance(error, Differs | Unreadable)
    if expected and stranger.rest_refusal in str(error):
        return Verdict.REFUSED, str(error)
    return Verdict.WRONG, f"{step.replace('_', ' ')}: {error}"


def _rows(exchange: Exchange) -> Iterator[Exchange]:
    inputs, expected = exchange
    for row in range(len(next(iter(inputs.values())))):
        yield ({name: array[row : row + 1] for name, array in inputs.items()},
               {name: array[row : row + 1] for name, array in expected.items()})  # fmt: skip
