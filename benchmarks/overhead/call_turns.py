"""Measurement of the protocol comparison: one server, and calls that take turns."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.harness.load_tools import Load, framed, run_h2load, run_wrk
from benchmarks.harness.measurement import TOLERANCE, WARM_UP_S, WrongAnswer, check_size
from benchmarks.harness.targets import Target, model_server, write_image
from benchmarks.harness.turns import in_turn
from benchmarks.overhead.calls import IN_FLIGHT, Call, calls
from tpuserve_client.errors import TpuserveError
from tpuserve_client.grpc_transport import GrpcTransport
from tpuserve_client.rest_transport import RestTransport

if TYPE_CHECKING:
    from tpuserve_client.exchange import Transport

_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CallPoint:
    """The turns of a call. `cpu_s_per_1000` has the CPU of each turn, as in Point."""

    size: str
    name: str
    loads: tuple[Load, ...]
    cpu_s_per_1000: tuple[float, ...]


def measure_calls(
    mlp_base: Path, scratch: Path, *, rounds: int, seconds: int, progress: Callable[[str], None]
) -> list[CallPoint]:
    """Load a server with each call in turn, `rounds` times for `seconds` each. Raises WrongAnswer for a wrong output.

    Raises ServerDied and ToolFailed, too.
    """
    config = write_image(mlp_base, scratch)
    with model_server(mlp_base, scratch, f"--model_config_file={config}") as server:
        listed = calls()
        sizes = {call.key: check_call(call, server[call.protocol].port) for call in listed}
        for call in listed:
            load_call(call, server[call.protocol], WARM_UP_S, scratch)
        loads: dict[tuple[str, str], list[Load]] = {call.key: [] for call in listed}
        cpu_s: dict[tuple[str, str], list[float]] = {call.key: [] for call in listed}
        for number in range(rounds):
            for call in in_turn(listed, number):
                progress(f"{call.name} of {call.size}, turn {number + 1} of {rounds}")
                target = server[call.protocol]
                before_s = target.tree.cpu_seconds()
                load = load_call(call, target, seconds, scratch)
                loads[call.key].append(load)
                cpu_s[call.key].append(1000 * (target.tree.cpu_seconds() - before_s) / load.requests)
                _check_load(call, load, sizes[call.key])
                target.tree.check_alive()
        for call in listed:
            check_call(call, server[call.protocol].port)
    return [CallPoint(*call.key, tuple(loads[call.key]), tuple(cpu_s[call.key])) for call in listed]


def check_call(call: Call, port: int) -> int:
    """Send the call once, and return the size of the response. Raises WrongAnswer."""
    with closing(transport_of(call, port)) as transport:
        try:
            reply = transport.send(call.exchange, _TIMEOUT_S)
            output = call.read(reply)
        except (TpuserveError, ValueError, KeyError) as error:
            raise WrongAnswer(f"{call.name} of {call.size}: {error!r}") from error
    if not np.allclose(output, call.expected, atol=TOLERANCE):
        raise WrongAnswer(f"{call.name} of {call.size}: expected {call.expected}, got {output}")
    return len(reply.body)


def transport_of(call: Call, port: int) -> "Transport":
    """Return a connection to the server for the call's protocol."""
    if call.protocol == "grpc":
        return GrpcTransport(f"127.0.0.1:{port}")
    return RestTransport(f"http://127.0.0.1:{port}")


def _check_load(call: Call, load: Load, answer_bytes: int) -> None:
    """Raise WrongAnswer if requests failed. h2load cannot see a gRPC status, but errors have no body."""
    if load.failures:
        raise WrongAnswer(f"{call.name} of {call.size}: {load.failures} of {load.requests} requests failed")
    check_size(load, answer_bytes)


def load_call(call: Call, target: Target, seconds: int, scratch: Path, in_flight: int | None = None) -> Load:
    """Load a target with a call, with `in_flight` requests or the number for its size."""
    body = scratch / f"body-{call.size}-{call.name}".replace(" ", "-")
    is_grpc = call.protocol == "grpc"
    if not body.exists():
        body.write_bytes(framed(call.exchange.body) if is_grpc else call.exchange.body)
    in_flight, path = in_flight or IN_FLIGHT[call.size], call.exchange.path
    if is_grpc:
        return run_h2load(target.port, path, body, in_flight=in_flight, duration_s=seconds, scratch=scratch)
    headers = call.exchange.headers
    return run_wrk(target.port, path, body, in_flight=in_flight, duration_s=seconds, scratch=scratch, headers=headers)
