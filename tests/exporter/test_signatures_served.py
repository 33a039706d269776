"""Tests for the digits on a real server, exported with signatures of image files and classes."""

import base64
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image
from tensorflow_serving.apis import classification_pb2, prediction_service_pb2_grpc

from examples.digits.data import load
from tests.e2e.running_server import RunningServer, run_server
from tests.exporter.conftest import Finished
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SIGNATURES = ("serving_default=tensor", "photo=image_bytes,scale=0..1", "names=classify")


@pytest.fixture
def server(export: Callable[..., Finished], digits_checkpoint: Path, tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "labels.txt").write_text("\n".join(NAMES))
    flags = [flag for one in SIGNATURES for flag in ("--signature", one)]
    model = ("--model", "examples.digits.model:build", "--batch-sizes", "1,4")
    finished = export(digits_checkpoint, tmp_path / "m", *model, *flags, "--labels", tmp_path / "labels.txt")
    assert finished.code == 0, finished.err
    with run_server(tmp_path / "m", tmp_path / "server.log") as running:
        yield running


def test_one_model_answers_tensors_image_files_and_examples_alike(server: RunningServer) -> None:
    """Send the digits as PNG in their own size and enlarged: the signature resizes them to 8 by 8."""
    _, held_out = load()
    grey = np.rint(held_out.images[:3, ..., 0] * 255).astype(np.uint8)
    image = grey[..., None].astype(np.float32) / 255
    enlarged = grey.repeat(4, axis=1).repeat(4, axis=2)
    with Client(server.grpc) as client:
        expected = client.predict("m", {"image": image})["probabilities"]
        for files in (grey, enlarged):
            sent = {"image_bytes": np.array([png(one) for one in files], object)}
            np.testing.assert_allclose(
                client.predict("m", sent, signature_name="photo")["probabilities"], expected, atol=2e-2
            )
        assert client.metadata("m", with_labels=True).labels == NAMES
    instances = [{"image_bytes": {"b64": base64.b64encode(png(one)).decode()}} for one in grey]
    answer = ask(server, "predict", {"signature_name": "photo", "instances": instances})["predictions"]
    np.testing.assert_allclose(answer, expected, atol=2e-2)

    examples = [{"image": [float(value) for value in one.ravel()]} for one in image]
    results = ask(server, "classify", {"signature_name": "names", "examples": examples})["results"]
    assert [[name for name, _ in row] for row in results] == [list(NAMES)] * 3
    np.testing.assert_allclose([[score for _, score in row] for row in results], expected, atol=2e-2)

    request = classification_pb2.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", "names"
    for one in image:
        feature = request.input.example_list.examples.add().features.feature["image"]
        feature.float_list.value.extend(one.ravel())
    with grpc.insecure_channel(server.grpc) as channel:
        classified = prediction_service_pb2_grpc.PredictionServiceStub(channel).Classify(request, timeout=30)
    best = [max(row.classes, key=lambda one: one.score).label for row in classified.result.classifications]
    assert best == [NAMES[index] for index in expected.argmax(axis=1)]


def png(grey: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "png")
    return file.getvalue()


def ask(server: RunningServer, method: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{server.rest}/v1/models/m:{method}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
        return answer
