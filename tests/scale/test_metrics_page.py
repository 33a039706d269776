"""Tests the metrics page of a server with a thousand configured models, of which requests have loaded a hundred."""

import gzip
from collections import Counter
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import tensorflow as tf
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.e2e.running_server import START_TIMEOUT_S, RunningServer, run_configured_server
from tests.support.saved_models import save_function, write_manifest
from tpuserve_client import Client

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(900)]

LOADED = [f"loaded-{number:03}" for number in range(100)]
CONFIGURED = [f"configured-{number:03}" for number in range(900)]
OPEN_METRICS = {"accept": "application/openmetrics-text;version=1.0.0", "accept-encoding": "gzip"}
# Bytes of the page for a model with requests over both protocols, and for one without a version.
MOST_OF_LOADED, MOST_OF_CONFIGURED = 34_000, 80


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    write_manifest(save_function(folder / "doubles/1", lambda x: {"y": 2 * x}, tf.TensorSpec([None], tf.float32, "x")))
    entries = (
        f'config {{ name: "{name}" base_path: "{folder / "doubles"}" model_platform: "tensorflow" '
        # The fixture waits for one model.
        f'load_policy: "{"always" if name == LOADED[-1] else "on_demand"}" }}\n'
        for name in (*LOADED, *CONFIGURED)
    )
    config = folder / "models.config"
    config.write_text(f"model_config_list {{\n{''.join(entries)}}}\n")
    flags = (f"--model_config_file={config}", "--file_system_poll_wait_seconds=5")
    with run_configured_server(folder / "log", *flags, model=LOADED[-1]) as running:
        with Client(running.grpc) as client:
            for name in LOADED:
                client.predict(name, {"x": np.ones(1, np.float32)}, timeout_s=START_TIMEOUT_S)
                answer = httpx.post(
                    f"{running.rest}/v1/models/{name}:predict", content=b'{"instances": [1.0]}', timeout=60
                )
                assert answer.status_code == 200
        yield running


def samples(server: RunningServer) -> list[Sample]:
    page = httpx.get(f"{server.rest}/metrics", headers=OPEN_METRICS, timeout=60).text
    families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]  # untyped library
    return [sample for family in families for sample in family.samples]


def test_loaded_models_have_all_series_and_the_others_have_one(server: RunningServer) -> None:
    of_model: dict[str, Counter[str]] = {}
    for sample in samples(server):
        if "model_name" in sample.labels and "le" not in sample.labels:
            of_model.setdefault(sample.labels["model_name"], Counter())[sample.name] += 1
    assert of_model.keys() == {*LOADED, *CONFIGURED}
    first = of_model[LOADED[0]]
    # Predict of both protocols.
    assert first["tpuserve_requests_total"] == 2
    assert first[":tensorflow:serving:request_latency_count"] == 2
    assert first[":tensorflow:serving:runtime_latency_count"] == 1
    assert all(of_model[name].keys() == first.keys() for name in LOADED)
    assert all(of_model[name] == {"tpuserve_model_available": 1} for name in CONFIGURED)


def test_the_page_has_parts_and_a_size_by_the_models_that_have_values(server: RunningServer) -> None:
    with httpx.stream("GET", f"{server.rest}/metrics", headers=OPEN_METRICS, timeout=60) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        sent = b"".join(answer.iter_raw())
    page = gzip.decompress(sent)
    assert len(page) < MOST_OF_LOADED * len(LOADED) + MOST_OF_CONFIGURED * len(CONFIGURED)
    assert len(sent) < len(page) / 10
