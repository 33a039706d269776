"""Tests for pods that cannot serve, by their own arguments, variables and probes: unready with the reason, alive."""

from pathlib import Path

import httpx
import numpy as np
import pytest
import tensorflow as tf

from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest, server_container
from tests.deploy.pod_server import PodServer, run_container
from tests.e2e.running_server import START_TIMEOUT_S
from tests.support.device_programs import double_and_add, write_programs
from tests.support.object_stores import running_store
from tests.support.saved_models import save_function, save_mlp, write_manifest
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]


def tpu_container(*without: str) -> Manifest:
    """Return the container of an overlay for TPUs, which has models in a bucket, without some of its arguments."""
    (deployment,) = of_kind(build(OVERLAYS / "gke-tpu-v5e"), "Deployment").values()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {**container, "args": [each for each in container["args"] if each not in without]}


def tpu_paths(bucket: Path | str, tmp_path: Path) -> dict[str, Path | str]:
    """Return replacements of its paths."""
    return {"gs://BUCKET": bucket, "/cache": tmp_path / "cache"}


def check_unready(server: PodServer, reason: str) -> None:
    """Check that the kubelet keeps the pod and sends it no requests, and that the probe gives the reason."""
    server.wait_for_probe("startupProbe")
    assert server.probe("livenessProbe").status_code == 200
    ready = server.probe("readinessProbe")
    assert (ready.status_code, ready.json()) == (
        503,
        {"ready": False, "reason": f"no version available for: model{reason}"},
    )


def status(server: PodServer) -> tuple[int, str]:
    """Return the response to a request for the model's status."""
    response = httpx.get(f"{server.rest}/v1/models/model")
    return response.status_code, response.text


def test_a_pod_waits_for_its_volume_and_serves_it_without_a_restart(tmp_path: Path) -> None:
    models = tmp_path / "models"
    with run_container(server_container(), {"/models": models}) as server:
        server.command.wait_for(f"Model model is waiting: its base path {models}/model does not exist")
        check_unready(server, " (its base path does not exist)")
        assert status(server) == (
            404,
            '{"error":"Could not find any versions of model model: its base path does not exist"}',
        )
        saved = save_mlp(tmp_path / "saved")
        write_manifest(saved)
        (models / "model").mkdir(parents=True)
        saved.rename(models / "model/1")
        server.wait_for_probe("readinessProbe")
        with Client(server.grpc) as client:
            assert client.predict("model", {"x": np.ones((1, 64), np.float32)})["y"].shape == (1, 10)


def test_a_pod_waits_for_its_bucket(tmp_path: Path) -> None:
    with running_store("gs", tmp_path / "store") as store:
        paths = tpu_paths(store.uri("absent"), tmp_path)
        with run_container(tpu_container("--device=tpu"), paths, store.environment) as server:
            server.command.wait_for("Model model is waiting: its base path gs://")
            check_unready(server, " (its base path does not exist)")


def test_a_pod_without_a_tpu_ends_with_what_it_found(tmp_path: Path) -> None:
    version = tmp_path / "models/model/1"
    save_function(version, lambda x: {"y": 2 * x}, tf.TensorSpec([None, 2], tf.float32, "x"))
    write_programs(version, double_and_add())
    with run_container(tpu_container(), tpu_paths(tmp_path, tmp_path)) as server:
        server.command.wait_for("failed: --device=tpu: PJRT found only cpu")
        # JAX looks for devices once in the life of a process, so the kubelet has to start another one.
        assert server.command.process.wait(START_TIMEOUT_S) == 1
