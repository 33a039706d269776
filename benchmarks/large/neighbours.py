"""Latency of small requests while another client sends JSON images, and alone, in turns on one server."""

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import image_model, mlp_model
from benchmarks.harness.json_bodies import instances_body
from benchmarks.harness.load_tools import JSON_HEADERS, percentile
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import REST_PATH, model_server, write_image

# Pause of the small client after each response. Without one, it would take a core of a small machine.
_PAUSE_S: Final = 0.002
_TIMEOUT_S: Final = 60.0
# Requests of a turn before those that count, while the large client starts.
_WARM_UP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A JSON request of one image, and its path."""

    name: str
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of the small requests of all turns, in milliseconds, and the responses to the large client."""

    beside: str
    p50_ms: float
    p99_ms: float
    worst_ms: float
    small: int
    large: int


def bodies(x: Floats) -> list[LargeBody]:
    """Return one image as TensorFlow Serving's rows and as a flat tensor of OIP: all digits of doubles, 3.15 MB."""
    doubles = x.astype(np.float64)
    tensor = {"name": mlp_model.INPUT, "datatype": "FP32", "shape": x.shape, "data": doubles.ravel().tolist()}
    infer = f"/v2/models/{image_model.NAME}/infer"
    return [
        LargeBody(
            "TF REST",
            f"/v1/models/{image_model.NAME}:predict",
            json.dumps({"instances": doubles.tolist()}).encode(),
        ),
        LargeBody("OIP JSON", infer, json.dumps({"inputs": [tensor]}).encode()),
    ]


def measure(
    mlp_base: Path, scratch: Path, *, rounds: int, seconds: float, progress: Callable[[str], None]
) -> list[Latency]:
    """Measure small requests alone and next to each large body, in `rounds` turns of `seconds`.

    Raises ServerDied and WrongAnswer.
    """
    config = write_image(mlp_base, scratch)
    large = bodies(image_model.example())
    with model_server(mlp_base, scratch, f"--model_config_file={config}") as server:
        port = server["rest"].port
        for one in large:
            _check(port, one)
        found: dict[str, list[float]] = {"": [], **{one.name: [] for one in large}}
        responses = dict.fromkeys(found, 0)
        for number in range(rounds):
            for beside in (None, *large):
                name = "" if beside is None else beside.name
                progress(f"small requests beside {name or 'nothing'}, turn {number + 1} of {rounds}")
                latencies_ms, count = _turn(port, beside, seconds, scratch)
                found[name] += latencies_ms
                responses[name] += count
        server["rest"].tree.check_alive()
    return [_latency(name, values_ms, responses[name]) for name, values_ms in found.items()]


def _latency(beside: str, values_ms: list[float], large: int) -> Latency:
    ordered = sorted(values_ms)
    p50_ms, p99_ms, worst_ms = statistics.median(ordered), percentile(ordered, 99), ordered[-1]
    return Latency(beside, p50_ms, p99_ms, worst_ms, len(ordered), large)


def _turn(port: int, beside: LargeBody | None, seconds: float, scratch: Path) -> tuple[list[float], int]:
    """Return the latencies of the small requests of a turn in milliseconds, and the number of large responses."""
    if beside is None:
        return _send_small(port, seconds), 0
    file = scratch / "large.json"
    file.write_bytes(beside.body)
    command = [sys.executable, str(Path(__file__).with_name("sender.py")), str(port), beside.path, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
        try:
            latencies_ms = _send_small(port, seconds)
        finally:
            sender.terminate()
        printed, errors = sender.communicate()
    if sender.returncode or not int(printed):
        raise WrongAnswer(f"the large client beside {beside.name} failed:\n{errors[-800:]}")
    return latencies_ms, int(printed)


def _send_small(port: int, seconds: float) -> list[float]:
    """Send one row again and again, and return the latencies in milliseconds after the warm-up."""
    body = instances_body(mlp_model.example())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    latencies_ms: list[float] = []
    begun_s = time.monotonic()
    while (started_s := time.monotonic()) < begun_s + _WARM_UP_S + seconds:
        connection.request("POST", REST_PATH, body, dict(JSON_HEADERS))
        response = connection.getresponse()
        answer = response.read()
        took_s = time.monotonic() - started_s
        if response.status != 200:
            raise WrongAnswer(f"a small request got {response.status}: {answer[:200]!r}")
        if started_s >= begun_s + _WARM_UP_S:
            latencies_ms.append(1000 * took_s)
        time.sleep(_PAUSE_S)
    connection.close()
    return latencies_ms


def _check(port: int, large: LargeBody) -> None:
    """Send a large body once. Raises WrongAnswer for another output than the model's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    connection.request("POST", large.path, large.body, dict(JSON_HEADERS))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    outputs = answer["outputs"][0]["data"] if "outputs" in answer else answer.get("predictions")
    expected = image_model.expected(image_model.example())
    if not np.allclose(np.ravel(outputs), expected.ravel(), atol=1e-4):
        raise WrongAnswer(f"{large.name}: expected {expected}, got {str(answer)[:200]}")
