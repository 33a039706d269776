"""Tests that the server serves what KServe's storage initializer mounts, by the runtime's own arguments and probes."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tensorflow as tf

from tests.deploy.dockerfile import ROOT
from tests.deploy.kserve.storage_initializer import initialize
from tests.deploy.manifests import Manifest, read
from tests.deploy.pod_server import PodServer, run_container
from tests.support.object_stores import RunningStore, running_store
from tests.support.saved_models import save_function, save_mlp, write_manifest
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]

KSERVE = ROOT / "deploy/kserve"
MOUNT = "/mnt/models"
(CONTAINER,) = read(KSERVE / "clusterservingruntime.yaml")["spec"]["containers"]
ROW = np.full((1, 64), 0.5, np.float32)


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the versions 3 and 4 of a model."""
    folder = tmp_path_factory.mktemp("digits")
    for version in (3, 4):
        write_manifest(save_mlp(folder / str(version), seed=version))
    return folder


@pytest.fixture
def store(request: pytest.FixtureRequest, versions: Path, tmp_path: Path) -> Iterator[RunningStore]:
    """Run a store with both versions. The test's parameter is its scheme, by default S3."""
    with running_store(getattr(request, "param", "s3"), tmp_path / "store") as running:
        running.put_folder(versions, "models/digits")
        yield running


def container(name: str, *args: str) -> Manifest:
    """Return the container that KServe makes of the runtime and the arguments of an InferenceService."""
    return {**CONTAINER, "args": [each.replace("{{.Name}}", name) for each in (*CONTAINER["args"], *args)]}


def mount(store: RunningStore, path: str, mount_path: Path) -> None:
    """Let the initializer copy a path of the store."""
    done = initialize(store.uri(path), mount_path, store.environment)
    assert done.returncode == 0, done.stderr


def predict_in_every_protocol(server: PodServer, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the answer of the server, which is the same in each protocol of the runtime."""
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": ROW.ravel().tolist()}
    with Client(server.grpc) as grpc, Client(f"oip+grpc://{server.grpc}") as oip:
        answer = grpc.predict(name, {"x": ROW})["y"]
        np.testing.assert_array_equal(oip.predict(name, {"x": ROW})["y"], answer)
    with httpx.Client(base_url=server.rest) as rest:
        v1 = rest.post(f"/v1/models/{name}:predict", json={"instances": ROW.tolist()}).json()
        v2 = rest.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]}).json()
    np.testing.assert_array_equal(np.array(v1["predictions"], np.float32), answer)
    np.testing.assert_array_equal(np.array(v2["outputs"][0]["data"], np.float32), answer.ravel())
    return answer


def expected(versions: Path, version: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the answer of TensorFlow itself."""
    answer = tf.saved_model.load(str(versions / str(version))).signatures["serving_default"](x=tf.constant(ROW))
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = answer["y"].numpy()
    return found


@pytest.mark.parametrize("store", ["s3", "gs"], indirect=True)
def test_a_base_path_is_served_under_the_services_name(store: RunningStore, versions: Path, tmp_path: Path) -> None:
    mount(store, "models/digits", tmp_path / "models")
    with run_container(container("digits"), {MOUNT: tmp_path / "models"}) as server:
        server.wait_for_probe("readinessProbe")
        assert server.probe("livenessProbe").status_code == 200
        np.testing.assert_allclose(predict_in_every_protocol(server, "digits"), expected(versions, 4), rtol=1e-2)
        annotations = read(KSERVE / "clusterservingruntime.yaml")["spec"]["annotations"]
        metrics = httpx.get(server.rest + annotations["prometheus.kserve.io/path"])
        assert "tpuserve_requests_total{" in metrics.text


def test_a_canary_serves_the_version_of_its_mount_path(store: RunningStore, versions: Path, tmp_path: Path) -> None:
    spec = read(KSERVE / "canary.yaml")["spec"]
    (storage,) = spec["canary"][0]["predictor"]["storageUris"]
    mounted = Path(storage["mountPath"].replace(MOUNT, str(tmp_path / "models")))
    mount(store, storage["uri"].removeprefix("s3://BUCKET/"), mounted)
    with run_container(container("digits"), {MOUNT: tmp_path / "models"}) as server:
        server.wait_for_probe("readinessProbe")
        states = httpx.get(f"{server.rest}/v1/models/digits").json()["model_version_status"]
        assert [each["version"] for each in states] == ["4"]
        np.testing.assert_allclose(predict_in_every_protocol(server, "digits"), expected(versions, 4), rtol=1e-2)


def test_a_version_as_the_storage_uri_is_served(store: RunningStore, versions: Path, tmp_path: Path) -> None:
    mount(store, "models/digits/3", tmp_path / "models")
    with run_container(container("digits"), {MOUNT: tmp_path / "models"}) as server:
        server.wait_for_probe("readinessProbe")
        np.testing.assert_allclose(predict_in_every_protocol(server, "digits"), expected(versions, 3), rtol=1e-2)


def test_an_empty_claim_leaves_the_pod_unready_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with run_container(container("digits"), {MOUNT: tmp_path / "models"}) as server:
        server.command.wait_for("Model digits is waiting: ")
        server.wait_for_probe("livenessProbe")
        ready = server.probe("readinessProbe")
        assert (ready.status_code, ready.json()["reason"]) == (
            503,
            "no version available for: digits (its base path contains no version directory such as 1/)",
        )


def test_an_empty_storage_uri_ends_the_initializer(store: RunningStore, tmp_path: Path) -> None:
    done = initialize(store.uri("models/absent"), tmp_path / "models", store.environment)
    assert done.returncode != 0
    assert "No model found in models/absent" in done.stderr


def test_an_ensemble_needs_no_transformer(store: RunningStore, tmp_path: Path) -> None:
    pictures = tf.TensorSpec([None], tf.string, "jpeg")
    decode = save_function(tmp_path / "decoder", lambda jpeg: {"image": decode_rows(jpeg)}, pictures)
    images = tf.TensorSpec([None, 64], tf.float32, "image")
    classify = save_function(tmp_path / "classifier", lambda image: {"probabilities": tf.nn.softmax(image)}, images)
    for name, folder in (("decoder", decode), ("classifier", classify)):
        store.put_folder(folder, f"pipelines/photos/{name}/1")
    config = (KSERVE / "ensemble/models.config").read_text(encoding="utf-8").replace(MOUNT, str(tmp_path / "models"))
    store.put("pipelines/photos/models.config", config.encode())
    mount(store, "pipelines/photos", tmp_path / "models")
    model = read(KSERVE / "ensemble/inferenceservice.yaml")["spec"]["predictor"]["model"]
    picture = tf.io.encode_jpeg(np.full((8, 8, 1), 128, np.uint8)).numpy()
    with run_container(container("photos", *model["args"]), {MOUNT: tmp_path / "models"}) as server:
        server.wait_for_probe("readinessProbe")
        with Client(server.grpc) as client:
            answer = client.predict("photos", {"file": np.array([picture], object)})["probabilities"]
        np.testing.assert_allclose(answer, np.full((1, 64), 1 / 64), rtol=1e-2)


def decode_rows(jpeg: tf.Tensor) -> tf.Tensor:
    """Return 64 numbers of each gray picture of 8 x 8 pixels."""
    images = tf.map_fn(lambda each: tf.io.decode_jpeg(each, channels=1), jpeg, fn_output_signature=tf.uint8)
    return tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 64])
