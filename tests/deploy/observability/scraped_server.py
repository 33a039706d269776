"""A real server under load, scraped by a real Prometheus with this repository's configuration.

The server exports traces to a receiver of this process.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from tests.deploy.observability.alert_case import OBSERVABILITY, RULES
from tests.e2e.running_server import START_TIMEOUT_S, RunningServer, run_configured_server
from tests.support.device_programs import double_and_add, write_programs
from tests.support.otlp_receiver import Receiver, http_receiver
from tests.support.prometheus_server import Prometheus, run_prometheus, wait_for
from tests.support.saved_models import save_function, write_manifest
from tpuserve_client import Client, InvalidArgument

# Seconds of the ranges in the queries, and of the data before the first query.
_RANGE_S = 10
_LOADED = f'count_over_time(up{{job="tpuserve"}}[{2 * _RANGE_S}s]) >= {_RANGE_S + 2}'


@dataclass(frozen=True, slots=True)
class ScrapedServer:
    """The server, its Prometheus, and the receiver of its traces."""

    server: RunningServer
    prometheus: Prometheus
    traces: Receiver


def prometheus_config(url: str) -> dict[str, Any]:
    """Return deploy/observability/prometheus.yaml for the server at `url`, with intervals of a second."""
    config: dict[str, Any] = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    return config


@contextlib.contextmanager
def run_scraped_server(folder: Path) -> Iterator[ScrapedServer]:
    """Start server, load and Prometheus, wait until the metrics cover the range of the queries, and stop all after the
    body.
    """
    with (
        http_receiver() as receiver,
        _run_loaded_server(folder, receiver) as server,
        run_prometheus(prometheus_config(server.rest), folder) as prometheus,
    ):
        wait_for(lambda: bool(prometheus.query(_LOADED)))
        yield ScrapedServer(server, prometheus, receiver)


@contextlib.contextmanager
def _run_loaded_server(folder: Path, receiver: Receiver) -> Iterator[RunningServer]:
    """Start the server and its load, and stop both after the body."""
    flags = (
        f"--model_config_file={_write_models(folder)}", "--device=cpu", "--response_cache_max_bytes=1000000",
        "--latency_objective_ms=5000", f"--request_log_path_prefix={folder}/requests",
        # Below the maximum rate of traces.
        f"--trace_endpoint={receiver.url}", "--trace_sample_ratio=0.1",
    )  # fmt: skip
    with (
        run_configured_server(folder / "log", *flags, model="program") as server,
        Client(server.grpc) as client,
    ):
        client.wait_until_ready(START_TIMEOUT_S, "graph")
        with _load(server):
            yield server


def _write_models(folder: Path) -> Path:
    """Save a model for TensorFlow and one of device programs, and return their configuration."""
    graph, program = folder / "graph/1", folder / "program/1"
    for path in (graph, program):
        save_function(path, lambda x: {"y": 2 * x}, tf.TensorSpec([None, 2], tf.float32, "x"))
    write_manifest(graph)
    write_programs(program, double_and_add())
    config = folder / "models.config"
    models = "".join(
        f'config {{ name: "{path.parent.name}" base_path: "{path.parent}" model_platform: "tensorflow" }}\n'
        for path in (graph, program)
    )
    config.write_text(f"model_config_list {{\n{models}}}\n")
    return config


@contextlib.contextmanager
def _load(server: RunningServer) -> Iterator[None]:
    """Send requests of each kind over both protocols until the end of the context."""
    stop = threading.Event()
    threads = [threading.Thread(target=_send, args=(address, stop)) for address in (server.grpc, server.rest)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _send(address: str, stop: threading.Event) -> None:
    """Send new, repeated and wrong requests in turns."""
    values = np.random.default_rng(0)
    with Client(address) as client:
        while not stop.wait(0.002):
            rows = values.integers(1, 5)
            for model in ("graph", "program"):
                client.predict(model, {"x": values.random((rows, 2), np.float32)})
                client.predict(model, {"x": np.ones((rows, 2), np.float32)})
            with contextlib.suppress(InvalidArgument):
                client.predict("graph", {"unknown": np.ones((1, 2), np.float32)})
