"""Tests that a model with a latency objective rejects requests that it cannot answer in time, on a real server."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_server
from tests.support.saved_models import save_function
from tpuserve_client import Client, ResourceExhausted, Retry

pytestmark = [pytest.mark.slow]

# The number of additions. Even on a busy machine, a request reaches the queue in less time than they take.
STEPS = 600_000


def save_slow_model(path: Path) -> None:
    def count(x: tf.Tensor) -> dict[str, tf.Tensor]:
        _, total = tf.while_loop(lambda i, _: i < STEPS, lambda i, total: (i + 1, total + 1.0), [0, x])
        return {"y": total}

    save_function(path, count, tf.TensorSpec([None], tf.float32, "x"))


@dataclass
class Slow:
    server: RunningServer
    run_s: float

    def post(self, timeout_s: float) -> urllib.error.HTTPError:
        request = urllib.request.Request(
            f"{self.server.rest}/v1/models/m:predict",
            b'{"instances": [0]}',
            {"x-tpuserve-timeout-ms": f"{timeout_s * 1000:.3f}"},
        )
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=60)
        return raised.value


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    save_slow_model(tmp_path / "slow" / "1")
    flags = ("--enable_batching", "--allowed_batch_sizes=1", "--latency_objective_ms=60000")
    with run_server(tmp_path / "slow", tmp_path / "log", *flags) as server:
        with urllib.request.urlopen(f"{server.rest}/metrics", timeout=30) as answer:
            [cost] = re.findall(r"^tpuserve_batch_cost_seconds\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        yield Slow(server, float(cost))


def test_it_is_refused_at_once_with_the_time_to_come_again(slow: Slow) -> None:
    with slow.post(slow.run_s * 0.9) as refused:
        assert refused.code == 429
        assert int(refused.headers["retry-after"]) >= 1
        message = json.load(refused)["error"]
    assert re.fullmatch(
        r"Servable \{name: m version: 1\} would finish this request in [\d.]+ ms, later than the request's deadline in "
        r"[\d.]+ ms \(0 rows are queued before it\); retry in \d+ ms",
        message,
    )
    with Client(slow.server.grpc, retry=Retry(max_attempts=1)) as client, pytest.raises(ResourceExhausted) as raised:
        client.predict("m", {"x": np.zeros(1, np.float32)}, timeout_s=slow.run_s * 0.9)
    assert raised.value.retry_after_s is not None
    assert 0 < raised.value.retry_after_s < 60
    with urllib.request.urlopen(f"{slow.server.rest}/metrics", timeout=30) as answer:
        assert re.search(
            r'^tpuserve_dropped_requests_total\{.*reason="too_late".*\} 2.0$', answer.read().decode(), re.M
        )
