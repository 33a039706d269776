"""Tests for an ensemble of two models on a real server: it answers like any model, and reloads check it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.saved_models import save_function, write_manifest
from tpuserve_client import Client, InvalidArgument, NotFound, State
from tpuserve_formats.messages.model_server_config import ModelServerConfig

pytestmark = pytest.mark.xdist_group(__name__)

PATIENCE_S = 60
PIXELS = np.array([[0, 51, 102, 255], [255, 0, 0, 0], [0, 0, 255, 0]], np.uint8)
NAMES = ("shirt", "trousers", "bag", "shoe")

SCALE = """step {
  model_name: "scale" input_map { key: "pixels" value: "photo" } output_map { key: "image" value: "image" }
}"""
CLASSIFY = """step {
  model_name: "classify" model_version: 7
  input_map { key: "image" value: "image" }
  output_map { key: "scores" value: "scores" } output_map { key: "name" value: "kind" }
}"""


def ensemble(name: str, *steps: str) -> str:
    return f'config {{ name: "{name}" model_platform: "ensemble" ensemble_scheduling {{ {" ".join(steps)} }} }}'


PHOTOS = ensemble("photos", CLASSIFY, SCALE)


@dataclass
class Served:
    """A server of `scale`, `classify` and `photos`, an ensemble of both."""

    server: RunningServer
    folder: Path

    def reload(self, *configs: str) -> tuple[str, str]:
        """Return the code and the message of a reload of the two models and these ensembles."""
        request = model_management_pb2.ReloadConfigRequest()
        config = text_format.Parse(configuration(self.folder, *configs), ModelServerConfig())
        request.config.ParseFromString(config.SerializeToString())
        with grpc.insecure_channel(self.server.grpc) as channel:
            try:
                model_service_pb2_grpc.ModelServiceStub(channel).HandleReloadConfigRequest(request, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return error.code().name, error.details() or ""
        return "OK", ""


def configuration(folder: Path, *ensembles: str) -> str:
    models = [
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}'
        for name in ("scale", "classify")
    ]
    # Ensembles may come before their steps.
    return f"model_config_list {{ {' '.join([*ensembles, *models])} }}"


def save_models(folder: Path) -> None:
    """Save `scale`, from uint8 pixels to floats, and `classify`, from floats to scores and the name of the highest."""
    pixels, image = (
        tf.TensorSpec([None, 4], kind, name) for kind, name in ((tf.uint8, "pixels"), (tf.float32, "image"))
    )
    scale = save_function(folder / "scale" / "1", lambda pixels: {"image": tf.cast(pixels, tf.float32) / 255}, pixels)
    write_manifest(scale)
    names = tf.constant(NAMES)
    classify = save_function(
        folder / "classify" / "7",
        lambda image: {"scores": 2 * image, "name": tf.gather(names, tf.argmax(image, axis=1))},
        image,
    )
    (classify / "labels.txt").write_text("\n".join(NAMES))
    write_manifest(classify, labels="labels.txt")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ensembles")
    save_models(folder)
    config = folder / "models.config"
    config.write_text(configuration(folder, PHOTOS))
    flags = (f"--model_config_file={config}", "--enable_batching")
    with run_configured_server(folder / "server.log", *flags, model="photos") as server:
        yield Served(server, folder)


def test_each_protocol_answers_what_the_steps_answer_one_by_one(served: Served) -> None:
    official = (served.server.grpc, served.server.rest)
    for address in (*official, f"oip+grpc://{official[0]}", f"oip+{official[1]}"):
        with Client(address) as client:
            image = client.predict("scale", {"pixels": PIXELS})["image"]
            expected = client.predict("classify", {"image": image})
            answer = client.predict("photos", {"photo": PIXELS})
        np.testing.assert_array_equal(answer["scores"], expected["scores"])
        assert list(map(_text, answer["kind"])) == ["shoe", "shirt", "bag"]
        assert (answer.model, answer.version, answer.signature_name) == ("photos", 1, "serving_default")


def test_metadata_and_status_are_those_of_any_model(served: Served) -> None:
    with Client(served.server.grpc) as client:
        metadata = client.metadata("photos", with_labels=True)
        [status] = client.status("photos")
        assert client.is_ready("photos")
    [signature] = metadata.signatures.values()
    assert {name: (spec.dtype, spec.shape) for name, spec in signature.inputs.items()} == {
        "photo": (np.dtype(np.uint8), (None, 4))
    }
    assert set(signature.outputs) == {"scores", "kind"}
    assert metadata.labels == NAMES
    assert (status.version, status.state) == (1, State.AVAILABLE)
    models = httpx.get(f"{served.server.rest}/v1/models", timeout=PATIENCE_S).text
    assert "step 2 (scale): photo -> image" in models


def test_each_step_batches_concurrent_requests(served: Served) -> None:
    with Client(served.server.grpc) as client, ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda row: client.predict("photos", {"photo": PIXELS[row : row + 1]}), [0, 1, 2] * 40)
        )
    assert [_text(answer["kind"][0]) for answer in answers] == ["shoe", "shirt", "bag"] * 40
    page = httpx.get(f"{served.server.rest}/metrics", timeout=PATIENCE_S).text
    assert 'tpuserve_requests_total{code="OK",method="Predict",model_name="photos"' in page
    for model in ("scale", "classify"):
        batches, rows = (
            sum(
                float(line.split()[-1])
                for line in page.splitlines()
                if line.startswith(f'{name}{{model_name="{model}"')
            )
            for name in ("tpuserve_batch_rows_count", "tpuserve_batch_rows_sum")
        )
        assert rows >= 120
        assert batches < rows


def test_errors_name_the_ensembles_inputs(served: Served) -> None:
    for address in (served.server.grpc, served.server.rest):
        with Client(address) as client:
            with pytest.raises(
                InvalidArgument, match=r"model photos .*input 'photo' has shape \[4\], expected \[-1, 4\]"
            ):
                client.predict("photos", {"photo": PIXELS[0]})
            with pytest.raises(InvalidArgument, match=r"Missing .*photo"):
                client.predict("photos", {"pixels": PIXELS})
            with pytest.raises(NotFound):
                client.predict("photos", {"photo": PIXELS}, version=2)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (SCALE.replace('"photo"', '"image"'), "its steps form a cycle: step 1 (scale) -> step 1 (scale)"),
        (SCALE.replace('"scale"', '"nosuch"'), "step 1 (nosuch): the configuration has no model nosuch"),
        (SCALE + ' output: "scores"', "no step produces output scores. The steps produce image"),
    ],
)
def test_a_reload_refuses_a_wrong_ensemble_with_names(served: Served, step: str, message: str) -> None:
    assert served.reload(PHOTOS, ensemble("other", step)) == ("INVALID_ARGUMENT", f"Ensemble other: {message}")


def test_a_reload_adds_ensembles_and_reports_one_whose_steps_do_not_fit(served: Served) -> None:
    assert served.reload(PHOTOS, ensemble("first", SCALE)) == ("OK", "")
    with Client(served.server.grpc) as client:
        assert list(client.predict("first", {"photo": PIXELS})) == ["image"]
    pixels = CLASSIFY.replace('value: "image"', 'value: "photo"')
    code, message = served.reload(PHOTOS, ensemble("unfit", SCALE, pixels))
    assert code == "UNKNOWN"
    assert (
        "Ensemble unfit: step 1 (scale version 1) takes tensor photo as uint8 [-1, 4], but step 2 (classify version 7) "
        "takes it as float32 [-1, 4]"
    ) in message
    assert served.reload(PHOTOS) == ("OK", "")
    with Client(served.server.grpc) as client, pytest.raises(NotFound):
        client.predict("first", {"photo": PIXELS})


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
