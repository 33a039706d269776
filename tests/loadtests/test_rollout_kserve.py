"""Tests for `tpuserve rollout` of a KServe InferenceService, with real servers as its revisions.

The API server and KServe's controller are those of `tests/support`. A gRPC proxy shares the requests by the
controller's traffic, as Knative's ingress does.
"""

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.deploy.kustomize import KUBECTL
from tests.e2e.running_server import RunningServer, run_server
from tests.loadtests.rollout_process import RolloutProcess, running_rollout
from tests.loadtests.rollout_proxies import GrpcProxy
from tests.support.kserve_controller import FIELD, InferenceServiceServer
from tests.support.kubernetes_api import serving
from tests.support.saved_models import save_function
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group(__name__)]

LIVE, NEW = 3, 4
SOURCE = ("--source", "kserve:serving/m")
# A soak that ends by a failure or a signal.
LONG = ("--soak", "20m", "--segments", "1000")


class Ingress:
    """The shares of the traffic by address. `delay_s` is that of each response."""

    def __init__(self) -> None:
        self.shares: dict[str, int] = {}
        self.delay_s = 0.0
        self._random = random.Random(1)
        self._never = threading.Event()

    def take(self, shares: dict[str, int]) -> None:
        self.shares = dict(shares)

    def route(self, request: bytes) -> str:
        self._never.wait(self.delay_s)
        [address] = self._random.choices([*self.shares], [*self.shares.values()])
        return address


@pytest.fixture(scope="module")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningServer]]:
    """Start a server for each of two storage URIs: one version each, and the same model."""
    root = tmp_path_factory.mktemp("kserve")
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    save_function(root / "a" / str(LIVE), lambda x: {"y": 2 * x}, spec)
    (root / "b").mkdir()
    shutil.copytree(root / "a" / str(LIVE), root / "b" / str(NEW))
    with run_server(root / "a", root / "log-a") as live, run_server(root / "b", root / "log-b") as new:
        yield {"s3://models/a": live, "s3://models/b": new}


def predictor(uri: str, **fields: int) -> dict[str, Any]:
    return {"predictor": {"model": {"modelFormat": {"name": "tpuserve"}, "storageUri": uri}, **fields}}


@dataclass
class Cluster:
    """An InferenceService, whose new version has no traffic yet."""

    api: InferenceServiceServer
    ingress: Ingress
    address: str
    kubeconfig: Path

    @contextmanager
    def planning(self, *arguments: str) -> Iterator[RolloutProcess]:
        variables = {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{KUBECTL.parent}:{environ['PATH']}"}
        with running_rollout("m", "--to", str(NEW), *SOURCE, *arguments, variables=variables) as command:
            yield command

    @contextmanager
    def rolling_out(self, *arguments: str) -> Iterator[RolloutProcess]:
        with self.planning("--execute", "--no-parity", *arguments) as command:
            yield command

    def answers(self) -> set[int | None]:
        """Return the versions of responses through the ingress."""
        with Client(self.address) as client:
            return {client.predict("m", {"x": np.ones((1, 4), np.float32)}).version for _ in range(40)}


@pytest.fixture
def cluster(revisions: dict[str, RunningServer], tmp_path: Path) -> Iterator[Cluster]:
    ingress = Ingress()
    with GrpcProxy(ingress.route).serving() as address:
        api = InferenceServiceServer(
            "serving",
            "m",
            predictor("s3://models/a"),
            f"http://{address}",
            lambda template: revisions[template["model"]["storageUri"]].grpc,
            on_traffic=ingress.take,
        )
        api.change(predictor("s3://models/b", **{FIELD: 0}))
        with serving(api):
            yield Cluster(api, ingress, address, api.kubeconfig(tmp_path / "kubeconfig"))


def test_the_new_revision_gets_all_traffic_and_the_field_disappears(cluster: Cluster, tmp_path: Path) -> None:
    seen: list[int | None] = []
    take = cluster.api.on_traffic

    def see(shares: dict[str, int]) -> None:
        seen.append(cluster.api.percent)
        take(shares)

    cluster.api.on_traffic = see
    assert cluster.answers() == {LIVE}
    page = tmp_path / "rollout.html"
    with cluster.rolling_out("--parity", "--html", str(page)) as command:
        code, report = command.finish()
    assert (code, report["outcome"]) == (0, "promoted"), command.text
    assert seen == [10, None]
    assert cluster.answers() == {NEW}
    assert [step["name"] for step in report["steps"]] == [
        "parity", "shadow", "traffic 10 %", "canary", "traffic 100 %", "soak", "revision",
    ]  # fmt: skip
    assert report["steps"][-1]["detail"] == (
        "all traffic at the revision m-predictor-00002; 32 responses of model m: 32 by version 4"
    )
    assert report["traffic"] == "traffic of the new revision: 100 % in the spec, 100 % in the status"
    assert "Version 4 is live" in page.read_text()


def test_a_plan_moves_no_traffic(cluster: Cluster) -> None:
    version = cluster.api.version
    with cluster.planning() as command:
        code, report = command.finish()
    assert (code, report["outcome"]) == (0, "planned"), command.text
    assert [(step["name"], step["state"]) for step in report["steps"]] == [
        ("parity", "passed"), ("shadow", "planned"), ("traffic 10 %", "planned"), ("canary", "planned"),
        ("traffic 100 %", "planned"), ("soak", "planned"), ("revision", "planned"),
    ]  # fmt: skip
    assert cluster.api.version == version


def test_a_gate_that_fails_at_the_first_share_returns_all_traffic_to_the_live_revision(cluster: Cluster) -> None:
    cluster.ingress.delay_s = 0.4
    with cluster.rolling_out("--fail-if", "p50>300ms") as command:
        code, report = command.finish()
    cluster.ingress.delay_s = 0.0
    assert (code, report["outcome"]) == (99, "moved back"), command.text
    assert [step["name"] for step in report["steps"]][-3:-1] == ["traffic 10 %", "canary"]
    assert report["steps"][-1]["name"] == "traffic back"
    assert report["steps"][-1]["detail"] == "0 % for the revision m-predictor-00002"
    assert cluster.api.spec == predictor("s3://models/b", **{FIELD: 0})
    assert cluster.answers() == {LIVE}


def test_a_controller_that_does_not_follow_fails_the_rollout(cluster: Cluster) -> None:
    cluster.api.paused = True
    with cluster.rolling_out("--patience", "2s") as command:
        code, report = command.finish()
    assert (code, report["outcome"]) == (1, "moved back"), command.text
    [failed] = [step for step in report["steps"] if step["name"] == "traffic 10 %"]
    assert "sends 0 % to m-predictor-00002, not 10 %" in failed["detail"]
    assert cluster.api.percent == 0
    assert cluster.answers() == {LIVE}


def test_a_signal_in_the_soak_returns_the_traffic(cluster: Cluster) -> None:
    with cluster.rolling_out(*LONG) as command:
        command.wait_for("traffic 100 %")
        assert cluster.answers() == {NEW}
        command.process.terminate()
        code, report = command.finish()
    assert (code, report["outcome"]) == (130, "moved back"), command.text
    assert cluster.api.percent == 0
    assert cluster.answers() == {LIVE}


def test_a_controller_that_does_not_return_the_traffic_is_reported(cluster: Cluster) -> None:
    with cluster.rolling_out(*LONG, "--patience", "2s") as command:
        command.wait_for("traffic 100 %")
        cluster.api.paused = True
        command.process.terminate()
        code, report = command.finish()
    assert (code, report["outcome"]) == (1, "stuck"), command.text
    assert report["steps"][-1]["detail"].startswith(
        "the traffic did not change: sends 100 % to m-predictor-00002, not 0 %"
    )
    assert report["traffic"] == "traffic of the new revision: 0 % in the spec, 100 % in the status"


def test_a_third_revision_in_the_soak_ends_the_rollout(cluster: Cluster) -> None:
    with cluster.rolling_out(*LONG, "--patience", "3s") as command:
        command.wait_for("traffic 100 %")
        theirs = predictor("s3://models/b", minReplicas=2)
        cluster.api.change(theirs)
        line = command.wait_for("does not follow")
        assert "sends 0 % to m-predictor-00002, not 100 %" in line
        code, report = command.finish()
    assert code == 1, command.text
    assert cluster.api.spec["predictor"]["minReplicas"] == 2
    assert report["outcome"] != "promoted"


def test_versions_that_the_revisions_do_not_serve_are_usage_errors(
    cluster: Cluster, revisions: dict[str, RunningServer]
) -> None:
    with cluster.rolling_out("--to", "9") as command:
        code, _ = command.finish()
    assert code == 2
    assert "m-predictor-00002 serves version 4" in " ".join(command.text.split())
    cluster.api.change(predictor("s3://models/a", minReplicas=2, **{FIELD: 0}))
    with cluster.rolling_out() as command:
        code, _ = command.finish()
    assert code == 2
    assert "Both revisions serve version 3" in " ".join(command.text.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--source", "kserve:m"], "expected kserve:NAMESPACE/NAME"),
        (["--source", "kserve:a/b", "--stable", "live"], "--stable has no effect with --source kserve:"),
        (["--source", "kserve:a/b", "--replicas", "h:1"], "--replicas has no effect with --source kserve:"),
    ],
)
def test_invalid_options_are_exit_code_2(arguments: list[str], complaint: str) -> None:
    with running_rollout("m", "--to", str(NEW), *arguments) as command:
        code, report = command.finish()
    assert (code, report) == (2, {})
    assert complaint in " ".join(command.text.split())
