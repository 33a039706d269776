"""Tests that the benchmark's recommender, with small tables, gives the same scores from Keras and from Flax."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recommender import flax_model, keras_model
from benchmarks.recommender.dlrm import SCORE, SHAPES, requests, scores, weights
from benchmarks.recommender.subjects import Source, export_options
from tests.e2e.running_server import run_server
from tests.exporter.conftest import Finished
from tpuserve_client import Client

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.slow,
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

SHAPE = SHAPES["tiny"]


@pytest.mark.parametrize(("source", "device"), [("keras", "TensorFlow"), ("flax", "PJRT")])
def test_scores_are_those_of_the_model_over_every_protocol(
    export: Callable[..., Finished], tmp_path: Path, source: Source, device: str
) -> None:
    saved = tmp_path / ("model.keras" if source == "keras" else "checkpoints")
    (keras_model if source == "keras" else flax_model).main("tiny", str(saved))
    finished = export(saved, tmp_path / "m", *export_options(source, "tiny"), "--batch-sizes", "1,4")
    assert finished.code == 0, finished.err
    items = requests(SHAPE, 3)
    expected = scores(SHAPE, weights(SHAPE), items)
    with run_server(tmp_path / "m", tmp_path / "log", "--device=cpu") as server:
        for address in (server.grpc, server.rest, f"oip+grpc://{server.grpc}"):
            with Client(address) as client:
                np.testing.assert_allclose(client.predict("m", items)[SCORE], expected, atol=1e-5)
                for row in range(3):
                    item = {name: value[row : row + 1] for name, value in items.items()}
                    np.testing.assert_allclose(client.predict("m", item)[SCORE], expected[row : row + 1], atol=1e-5)
    assert device in (tmp_path / "log").read_text()
