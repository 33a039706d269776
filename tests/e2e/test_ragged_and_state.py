"""Tests for ragged inputs and for the state of a recurrent network."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from examples.sine_gru.data import make
from examples.sine_gru.example import load
from examples.sine_gru.follow import follow
from examples.sine_gru.model import stateful
from examples.sine_gru.train import SERIES
from tests.e2e.running_server import run_configured_server
from tests.exporter.test_export_ragged import TABLE, save_bags
from tpuserve_client import Client
from tpuserve_exporter.api import export

pytestmark = [pytest.mark.xdist_group("exporter")]

_CONFIG = """
model_config_list {{
  config {{ name: "bags" base_path: "{0}/bags" model_platform: "tensorflow" }}
  config {{ name: "sine_gru" base_path: "{0}/sine_gru" model_platform: "tensorflow" }}
}}
"""


def test_both_are_served_as_their_sources_answer(tmp_path: Path) -> None:
    import tensorflow as tf

    export(save_bags(tmp_path / "source"), tmp_path / "bags", progress=False, batch_sizes=(1, 4))
    tf.train.Checkpoint(model=stateful(SERIES)).save(str(tmp_path / "checkpoint/ckpt"))
    model: dict[str, Any] = {"model": "examples.sine_gru.model:build", "allow_unused": "*state*"}
    export(tmp_path / "checkpoint", tmp_path / "sine_gru", progress=False, batch_sizes=(1, 4), **model)
    config = tmp_path / "models.config"
    config.write_text(_CONFIG.format(tmp_path))
    # The server batches every input with a free first dimension, like TensorFlow Serving. Row splits have one too.
    flags = (f"--model_config_file={config}", "--enable_batching")
    with run_configured_server(tmp_path / "log", *flags, model="sine_gru") as server:
        for address in (server.grpc, server.rest):
            with Client(address) as client:
                client.wait_until_ready(60, "bags")
                _check_rows(client)
                _check_state(client, tmp_path / "checkpoint")
        rows = {"instances": [{"ids": [1, 2], "scale": 1}, {"ids": [], "scale": 1}, {"ids": [3], "scale": 2}]}
        served = httpx.post(f"{server.rest}/v1/models/bags:predict", content=json.dumps(rows), timeout=30).json()
        assert [row["doubled"] for row in served["predictions"]] == [[2, 4], [], [6]]


def _check_rows(client: Client) -> None:
    answer = client.predict("bags", {"ids": [[1, 2], [], [3]], "scale": [1, 1, 2]})
    np.testing.assert_array_equal(answer["sum"], [TABLE[1] + TABLE[2], [0, 0], 2 * TABLE[3]])
    np.testing.assert_array_equal(answer["doubled"], [2, 4, 6])
    np.testing.assert_array_equal(answer["doubled_1"], [0, 2, 2, 3])


def _check_state(client: Client, checkpoint: Path) -> None:
    series = make(2, 6, seed=3)
    expected = load(checkpoint, series=2)(series[..., None])[..., 0]
    np.testing.assert_allclose(follow(client, "sine_gru", series), expected, atol=1e-6)
