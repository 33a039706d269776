"""One point of the benchmark: a load on a target, and the CPU time of the target's processes."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.json_bodies import instances_body
from benchmarks.harness.load_tools import FRAME_HEADER_BYTES, Load, framed, run_h2load, run_wrk
from benchmarks.harness.process_tree import Memory
from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH, Protocol, Target, http_get, http_post
from tpuserve_client import Client, Tls

WARM_UP_S = 1
# The server computes with TensorFlow's kernels, the expected value with numpy's.
TOLERANCE = 1e-4


class WrongAnswer(RuntimeError):
    """The server's output differs from the model's, so its measurements are meaningless."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """The request of each load generator: a gRPC frame and a JSON document, one row of 64 floats each."""

    grpc: Path
    rest: Path


@dataclass(frozen=True, slots=True)
class Point:
    """A target under one load. CPU is user + system of the whole process tree, in seconds per 1000 requests."""

    kind: str
    protocol: Protocol
    in_flight: int
    load: Load
    cpu_s_per_1000: float


@dataclass(frozen=True, slots=True)
class Served:
    """The server's own counts per protocol, from its metrics: OK responses and all others."""

    ok: int
    not_ok: int


def write_bodies(scratch: Path) -> Bodies:
    """Write the request bodies. Every point sends the same bodies."""
    x = mlp_model.example()
    bodies = Bodies(grpc=scratch / "body.grpc", rest=scratch / "body.json")
    bodies.grpc.write_bytes(framed(grpc_request(x)))
    bodies.rest.write_bytes(instances_body(x))
    return bodies


def grpc_request(x: mlp_model.Floats) -> bytes:
    """Return a serialized PredictRequest for the MLP."""
    return predict_request(MODEL_NAME, {mlp_model.INPUT: x})


def predict_request(model: str, inputs: Mapping[str, mlp_model.Floats], signature_name: str | None = None) -> bytes:
    """Return a serialized PredictRequest as the Python client encodes it."""
    from tpuserve_client.exchange import PredictCall
    from tpuserve_client.grpc_wire import GrpcWire
    from tpuserve_client.model import ModelSpec

    return GrpcWire().predict(PredictCall(ModelSpec(model), inputs, signature_name)).body


def measure(target: Target, in_flight: int, duration_s: int, bodies: Bodies, scratch: Path) -> Point:
    """Warm up the target, then load it for `duration_s` seconds with `in_flight` concurrent requests."""
    _load(target, in_flight, WARM_UP_S, bodies, scratch)
    before = target.tree.cpu_seconds()
    load = _load(target, in_flight, duration_s, bodies, scratch)
    cpu_s = target.tree.cpu_seconds() - before
    target.tree.check_alive()
    return Point(target.kind, target.protocol, in_flight, load, 1000 * cpu_s / load.requests)


def joined(turns: Sequence[Point]) -> Point:
    """Return one point for several turns of the same target and load. Latencies are means over the requests."""
    loads = [turn.load for turn in turns]
    requests = sum(load.requests for load in loads)

    def mean(values: Iterable[float]) -> float:
        return sum(value * load.requests for value, load in zip(values, loads, strict=True)) / requests

    load = Load(
        requests=requests,
        failures=sum(load.failures for load in loads),
        elapsed_s=sum(load.elapsed_s for load in loads),
        p50_ms=mean(load.p50_ms for load in loads),
        p99_ms=mean(load.p99_ms for load in loads),
        generator_cores=mean(load.generator_cores for load in loads),
        data_bytes=None if loads[0].data_bytes is None else sum(load.data_bytes or 0 for load in loads),
    )
    return replace(turns[0], load=load, cpu_s_per_1000=mean(turn.cpu_s_per_1000 for turn in turns))


def check_secure_answer(server: Mapping[Protocol, Target], ca: Path) -> None:
    """Send one request per protocol as `check_answer` does, to a server with a certificate of the authority `ca`."""
    x = mlp_model.example(rows=3)
    for address in (f"grpcs://127.0.0.1:{server['grpc'].port}", f"https://127.0.0.1:{server['rest'].port}"):
        with Client(address, tls=Tls(ca=ca)) as client:
            _compare(address, client.predict(MODEL_NAME, {mlp_model.INPUT: x})[mlp_model.OUTPUT], x)


def check_answer(server: Mapping[Protocol, Target]) -> None:
    """Send one request per protocol with a real client. Raises WrongAnswer if a response is not the model's output."""
    x = mlp_model.example(rows=3)
    with Client(f"127.0.0.1:{server['grpc'].port}") as client:
        _compare("gRPC", client.predict(MODEL_NAME, {mlp_model.INPUT: x})[mlp_model.OUTPUT], x)
    answer = json.loads(http_post(server["rest"].port, REST_PATH, instances_body(x)))
    _compare("REST", np.asarray(answer["predictions"], np.float32), x)


def _compare(protocol: str, got: object, x: mlp_model.Floats) -> None:
    if not np.allclose(np.asarray(got), mlp_model.expected(x), atol=TOLERANCE):
        raise WrongAnswer(f"{protocol}: expected {mlp_model.expected(x)}, got {got}")


def check_size(load: Load, answer_bytes: int) -> None:
    """Raise WrongAnswer if the responses have too few bytes: a gRPC error also has HTTP status 200, but no body."""
    successes = load.requests - load.failures
    expected = successes * (FRAME_HEADER_BYTES + answer_bytes)
    if load.data_bytes is not None and load.data_bytes < expected:
        raise WrongAnswer(f"grpc: {successes} responses have {load.data_bytes} bytes, expected {expected}")


def read_served(server: Mapping[Protocol, Target]) -> dict[Protocol, Served]:
    """Return the server's own counts of predict requests so far."""
    text = http_get(server["rest"].port, "/metrics").decode()
    return {protocol: parse_served(text, protocol) for protocol in server}


def parse_served(text: str, protocol: Protocol) -> Served:
    """Sum the request counters of a Prometheus page over the samples of one protocol."""
    ok = not_ok = 0
    for pairs, value in samples(text, "tpuserve_requests_total"):
        if pairs.get("protocol", "").lower() != protocol or "predict" not in pairs.get("method", "").lower():
            continue
        if pairs.get("code") == "OK":
            ok += int(value)
        else:
            not_ok += int(value)
    return Served(ok, not_ok)


def samples(page: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each sample of a metric on a Prometheus page."""
    for labels, value in re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE):
        yield dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)


def memory(server: Mapping[Protocol, Target]) -> Memory:
    """Return the resident memory of the server's process tree."""
    return server["grpc"].tree.memory()


def _load(target: Target, in_flight: int, duration_s: int, bodies: Bodies, scratch: Path) -> Load:
    run: Callable[..., Load]  # Both take the arguments below, and some further ones.
    if target.protocol == "grpc":
        run, path, body = run_h2load, GRPC_PATH, bodies.grpc
    else:
        run, path, body = run_wrk, REST_PATH, bodies.rest
    return run(target.port, path, body, in_flight=in_flight, duration_s=duration_s, scratch=scratch, tls=target.has_tls)
