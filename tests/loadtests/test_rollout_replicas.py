"""Tests for `tpuserve rollout` over two and three real servers: one lags, one dies, one returns with old labels."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.e2e.running_server import EXECUTABLE
from tests.loadtests.rollout_process import TIRED_AFTER, TIRING, running_rollout, save_tired
from tests.loadtests.rollout_proxies import spoiling_rest
from tests.loadtests.rollout_replicas import BAD, CONFIG_MAP, FILE, LIVE, NEW, cluster_of, replicas, rolling_out
from tests.support.certificates import Authority
from tests.support.free_ports import free_ports
from tests.support.git import IDENTITY, git
from tests.support.saved_models import save_function
from tpuserve_client import Client, Tls
from tpuserve_client.errors import TpuserveError
from tpuserve_loadtests.rollout.model_config_text import ModelConfigText

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group(__name__)]


PICKY = 6


def picky(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Double `x`, and run out of memory for an `x` that contains 99."""
    size = tf.cast(tf.reduce_any(x == 99.0), tf.int64) * 10**15
    return {"y": 2 * x + tf.reduce_sum(tf.fill([size], 0.0))}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fleet")
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    save_function(root / "m" / str(LIVE), lambda x: {"y": 2 * x}, spec)
    shutil.copytree(root / "m" / str(LIVE), root / "m" / str(NEW))
    save_tired(root / "m" / str(BAD), TIRED_AFTER)
    save_function(root / "m" / str(PICKY), picky, spec)
    return root


@pytest.fixture
def config(models: Path) -> str:
    return f"""\
# Written by a person.
model_config_list {{
  config {{
    name: "m" base_path: "{models}/m" model_platform: "tensorflow"
    model_version_policy {{ all {{}} }}
    version_labels {{ key: "stable" value: {LIVE} }}
  }}
}}
"""


@pytest.fixture
def shared(tmp_path: Path, config: str) -> Path:
    """Return a file that several servers read at their start."""
    path = tmp_path / FILE
    path.write_text(config)
    return path


# A file, which the rollout sends to every replica.


def test_two_replicas_get_the_file_and_the_loads_use_both(shared: Path, tmp_path: Path) -> None:
    junit, page = tmp_path / "rollout.xml", tmp_path / "rollout.html"
    with replicas([shared, shared], tmp_path) as fleet:
        before = [each.requests() for each in fleet]
        files = ("--junit", str(junit), "--html", str(page))
        with rolling_out(fleet, "--model_config_file", str(shared), *files) as command:
            code, report = command.finish()
        assert code == 0, command.text
        assert report["outcome"] == "promoted"
        sha256 = ModelConfigText(shared.read_text()).sha256
        assert [each.sha256() for each in fleet] == [sha256, sha256]
        assert [each.answers() for each in fleet] == [NEW, NEW]
        # Three rounds of both versions and the soak, 80 requests a second: more than a hundred requests each.
        assert all(each.requests() - at > 100 for each, at in zip(fleet, before, strict=True))
    last = report["steps"][-1]
    assert last["name"] == "replicas"
    assert last["detail"] == (
        f"2 of 2 replicas with the configuration {sha256[:12]}; 32 responses of label stable: 32 by version 4"
    )
    assert [replica["lacks"] for replica in report["replicas"]] == ["", ""]
    assert all(f'name="replica {each.address}"' in junit.read_text() for each in fleet)
    assert all(each.address in page.read_text() for each in fleet)


def test_rest_is_proven_on_every_replica(shared: Path, tmp_path: Path, config: str) -> None:
    with replicas([shared, shared], tmp_path) as fleet:
        options = ("--model_config_file", str(shared), "--no-parity", "--soak", "0")
        with rolling_out(fleet, *options, "--rest", fleet[0].server.rest) as command:
            code, report = command.finish()
        assert (code, report) == (2, {})
        assert "1 of 2 replicas have a known REST address" in " ".join(command.text.split())
        # The canary is wrong over REST on the second replica alone.
        with spoiling_rest(fleet[1].server.rest, "/labels/canary:predict") as spoiled:
            of_rest = ("--replicas", fleet[0].server.rest, "--replicas", spoiled)
            with rolling_out(fleet, *options, *of_rest) as command:
                code, report = command.finish()
        assert (code, report["outcome"]) == (1, "moved back"), report
        canary = report["steps"][-2]
        assert (canary["name"], canary["state"]) == ("canary", "failed")
        failed = dict(re.findall(r"(http://[\d.:]+): [\d,]+ requests?, ([\d,]+) failed", canary["detail"]))
        assert (failed[fleet[0].server.rest], failed[spoiled] == "0") == ("0", False)
        assert shared.read_text() == config
        of_rest = ("--replicas", fleet[0].server.rest, "--replicas", fleet[1].server.rest)
        with rolling_out(fleet, *options, *of_rest) as command:
            code, report = command.finish()
        assert (code, report["outcome"]) == (0, "promoted"), report
        canary = next(step for step in report["steps"] if step["name"] == "canary")
        assert all(f"{each.server.rest}: " in canary["detail"] for each in fleet)
        assert "users sent no request to the new version" in canary["detail"]
        assert report["canary_users"] == {"requests": 0, "failed": 0, "problem": ""}
        assert report["steps"][-1]["detail"].endswith("32 responses of label stable: 32 by version 4")


@pytest.mark.parametrize("gate", [(), ("--fail-if", "error_rate>50%"), ("--fail-if", "error_rate>99%")])
def test_requests_of_users_to_the_canary_are_judged(
    shared: Path, tmp_path: Path, config: str, gate: tuple[str, ...]
) -> None:
    """The version runs out of memory for the requests of users alone, except for one in four."""
    over = threading.Event()

    def call() -> None:
        with Client(fleet[0].address) as client:
            number = 0
            while not over.wait(0.01):
                number += 1
                with suppress(TpuserveError):
                    x = np.full((1, 4), 99 if number % 4 else 1, np.float32)
                    client.predict("m", {"x": x}, label="canary")

    with replicas([shared], tmp_path) as fleet:
        with Client(fleet[0].address) as client:
            client.wait_until_ready(90, "m", version=PICKY)
        addresses = ("--rest", fleet[0].server.rest, "--model_config_file", str(shared), "--to", str(PICKY))
        users = threading.Thread(target=call, name="users")
        users.start()
        try:
            with rolling_out(fleet, *addresses, *gate, "--no-parity", "--soak", "0") as command:
                code, report = command.finish()
        finally:
            over.set()
            users.join()
    canary = next(step for step in report["steps"] if step["name"] == "canary")
    found = report["canary_users"]
    assert 0 < found["failed"] < found["requests"]
    words = f"users sent {found['requests']:,} requests to the new version, of which {found['failed']:,} failed"
    assert words in canary["detail"]
    if "error_rate>99%" in gate:
        assert (code, canary["state"]) == (0, "passed"), report
    else:
        assert (code, report["outcome"]) == (99 if gate else 1, "moved back"), report
        assert canary["state"] == "failed"
        assert shared.read_text() == config


def test_a_dead_replica_is_refused_before_the_move_and_allowed_by_consent(
    shared: Path, tmp_path: Path, config: str
) -> None:
    with replicas([shared, shared], tmp_path) as fleet:
        fleet[1].kill()
        with rolling_out(fleet, "--model_config_file", str(shared)) as command:
            code, report = command.finish()
        assert (code, report) == (3, {}), command.text
        assert f"Error: Cannot reach {fleet[1].address}: Cannot connect" in command.text
        assert shared.read_text() == config
        assert fleet[0].answers() == LIVE
        consent = ("--model_config_file", str(shared), "--allow-missing", "1", "--soak", "0", "--no-parity")
        with rolling_out(fleet, *consent) as command:
            code, report = command.finish()
        assert code == 0, command.text
        assert fleet[0].answers() == NEW
        assert report["steps"][-1]["detail"].startswith("1 of 2 replicas with the configuration ")
        assert report["replicas"][1]["lacks"].startswith("does not respond")


def test_a_replica_that_dies_in_the_soak_moves_the_labels_of_the_others_back(
    shared: Path, tmp_path: Path, config: str
) -> None:
    with replicas([shared, shared, shared], tmp_path) as fleet:
        # The load goes to the first replica alone, as through a balancer that has already removed a dead one.
        soak = ("--model_config_file", str(shared), "--grpc", fleet[0].address, "--soak", "20m", "--segments", "1000")
        with rolling_out(fleet, *soak, "--no-parity", "--patience", "3s") as command:
            command.wait_for("label stable")
            assert [each.answers() for each in fleet] == [NEW, NEW, NEW]
            fleet[1].kill()
            line = command.wait_for("does not follow")
            assert f"{fleet[1].address} does not respond" in line
            code, report = command.finish()
        assert code == 3, command.text
        assert report["outcome"] == "server gone"
        assert report["steps"][-2]["name"] == "soak"
        assert f"{fleet[1].address} does not respond" in report["steps"][-1]["detail"]
        assert [bool(replica["problem"]) for replica in report["replicas"]] == [False, True, False]
        assert shared.read_text() == config
        assert [fleet[0].answers(), fleet[2].answers()] == [LIVE, LIVE]
        fleet[1].start()
        assert fleet[1].answers() == LIVE


def test_a_replica_that_returns_with_the_old_configuration_ends_the_rollout(tmp_path: Path, config: str) -> None:
    files = [tmp_path / "a.config", tmp_path / "b.config"]
    for file in files:
        file.write_text(config)
    with replicas(files, tmp_path) as fleet:
        soak = ("--model_config_file", str(files[0]), "--grpc", fleet[0].address, "--soak", "20m", "--segments", "1000")
        with rolling_out(fleet, *soak, "--no-parity", "--patience", "20s") as command:
            command.wait_for("label stable")
            fleet[1].kill()
            fleet[1].start()  # with its own file, which the rollout has not written
            line = command.wait_for("has label stable at version 3, not version 4")
            assert f"{fleet[1].address} has the configuration {ModelConfigText(config).sha256[:12]}, not" in line
            code, report = command.finish()
        assert code == 1, command.text
        assert report["outcome"] == "moved back"
        assert "has label stable at version 3" in report["steps"][-2]["detail"]
        assert [each.answers() for each in fleet] == [LIVE, LIVE]
        assert files[0].read_text() == config


# A ConfigMap, which the servers poll in their volumes.


def test_the_rollout_waits_for_a_replica_whose_volume_lags(tmp_path: Path, config: str) -> None:
    with cluster_of(tmp_path, config, 2) as (cluster, fleet):
        cluster.lagging = {1}
        with rolling_out(fleet, *CONFIG_MAP, "--no-parity", **cluster.variables) as command:
            line = command.wait_for("Waiting for 1 of 2 replicas")
            while fleet[0].address in line:  # until the other one has polled
                line = command.wait_for("Waiting for ")
            assert f"{fleet[1].address} has the configuration {ModelConfigText(config).sha256[:12]}, not" in line
            assert fleet[0].answers("canary") == NEW
            # The next label does not move before both have the first one.
            assert ModelConfigText(cluster.text).labels("m") == {"stable": LIVE, "canary": NEW}
            assert [each.answers() for each in fleet] == [LIVE, LIVE]
            cluster.lagging = set()
            cluster.catch_up(1)
            code, report = command.finish()
        assert code == 0, command.text
        assert report["outcome"] == "promoted"
        assert [each.answers() for each in fleet] == [NEW, NEW]
        assert {each.sha256() for each in fleet} == {ModelConfigText(cluster.text).sha256}
        assert cluster.text.startswith("# Written by a person.")


def test_a_replica_that_never_follows_moves_the_others_back(tmp_path: Path, config: str) -> None:
    with cluster_of(tmp_path, config, 3) as (cluster, fleet):
        cluster.lagging = {2}
        options = (*CONFIG_MAP, "--no-parity", "--patience", "4s")
        with rolling_out(fleet, *options, **cluster.variables) as command:
            code, report = command.finish()
        assert code == 1, command.text
        assert report["outcome"] == "moved back"
        [failed] = [step for step in report["steps"] if step["name"] == "label canary"]
        assert f"{fleet[2].address} has the configuration" in failed["detail"]
        assert cluster.text == config
        assert {each.sha256() for each in fleet} == {ModelConfigText(config).sha256}
        assert [each.answers() for each in fleet] == [LIVE] * 3


def test_a_signal_ends_the_wait_for_a_replica(tmp_path: Path, config: str) -> None:
    with cluster_of(tmp_path, config, 2) as (cluster, fleet):
        cluster.lagging = {1}
        options = (*CONFIG_MAP, "--no-parity", "--patience", "1h")
        with rolling_out(fleet, *options, **cluster.variables) as command:
            command.wait_for(f"{fleet[1].address} has the configuration")
            command.process.terminate()
            code, report = command.finish()
        assert (code, report["outcome"]) == (130, "moved back"), command.text
        assert cluster.text == config
        assert {each.sha256() for each in fleet} == {ModelConfigText(config).sha256}


def test_another_change_of_the_config_map_stays_when_the_labels_move_back(tmp_path: Path, config: str) -> None:
    with cluster_of(tmp_path, config, 2) as (cluster, fleet):
        options = (*CONFIG_MAP, "--no-parity", "--soak", "20m", "--segments", "1000")
        with rolling_out(fleet, *options, **cluster.variables) as command:
            command.wait_for("label stable")
            cluster.api.change({FILE: cluster.text + "# theirs\n", "note": "theirs"})
            command.process.terminate()
            code, report = command.finish()
        assert (code, report["outcome"]) == (130, "moved back"), command.text
        assert cluster.api.data == {FILE: config + "# theirs\n", "note": "theirs"}
        assert [each.answers() for each in fleet] == [LIVE, LIVE]


def test_a_replica_that_dies_while_the_labels_move_back(tmp_path: Path, config: str) -> None:
    with cluster_of(tmp_path, config, 2) as (cluster, fleet):
        follow = cluster.api.on_change

        def kill_in_the_reversal(data: dict[str, str]) -> None:
            if data[FILE] == config:
                fleet[1].kill()
            follow(data)

        cluster.api.on_change = kill_in_the_reversal
        failing = (*CONFIG_MAP, "--to", str(BAD), *TIRING)
        with rolling_out(fleet, *failing, "--patience", "4s", **cluster.variables) as command:
            code, report = command.finish()
        assert (code, report["outcome"]) == (3, "server gone"), command.text
        assert f"{fleet[1].address} does not respond" in report["steps"][-1]["detail"]
        assert [bool(replica["problem"]) for replica in report["replicas"]] == [False, True]
        assert cluster.text == config
        assert fleet[0].answers() == LIVE
        fleet[1].start()
        assert fleet[1].answers() == LIVE
        # A replica that returns while the rollout waits has the old labels, too.
        long = (*CONFIG_MAP, "--no-parity", "--soak", "20m", "--segments", "1000", "--patience", "90s")
        with rolling_out(fleet, *long, **cluster.variables) as command:
            command.wait_for("label stable")
            command.process.terminate()
            line = command.wait_for("Waiting for 1 of 2 replicas")
            while f"{fleet[1].address} does not respond" not in line:
                line = command.wait_for("Waiting for ")
            assert cluster.text == config
            fleet[1].start()
            code, report = command.finish()
        assert (code, report["outcome"]) == (130, "moved back"), command.text
        assert [replica["lacks"] for replica in report["replicas"]] == ["", ""]
        assert [each.answers() for each in fleet] == [LIVE, LIVE]


# A repository, which a GitOps controller follows.


@contextmanager
def following(repository: Path, pulled: Path) -> Iterator[None]:
    """Pull the branch until the end, as a GitOps controller does."""
    over = threading.Event()

    def pull() -> None:
        while not over.wait(0.2):
            git(pulled, "pull", "--quiet", "--ff-only")

    git(repository.parent, "clone", "--quiet", str(repository), str(pulled))
    thread = threading.Thread(target=pull, name="gitops")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_commits_reach_the_servers_through_gitops_and_a_failure_is_committed_back(tmp_path: Path, config: str) -> None:
    checkout, origin, pulled = (tmp_path / name for name in ("checkout", "origin", "pulled"))
    checkout.mkdir()
    git(checkout, "init", "--quiet", "--initial-branch", "main")
    (checkout / FILE).write_text(config)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "Begin")
    git(tmp_path, "clone", "--quiet", "--bare", str(checkout), str(origin))
    git(checkout, "remote", "add", "origin", str(origin))
    git(checkout, "fetch", "--quiet", "origin")
    git(checkout, "branch", "--quiet", "--set-upstream-to", "origin/main")
    polls = "--model_config_file_poll_wait_seconds=0.1"
    with following(origin, pulled), replicas([pulled / FILE] * 2, tmp_path, polls) as fleet:
        source = ("--source", "git-patch", "--model_config_file", str(checkout / FILE), "--no-parity")
        with rolling_out(fleet, *source, "--to", str(BAD), *TIRING, **IDENTITY) as command:
            code, report = command.finish()
        assert (code, report["outcome"]) == (99, "moved back"), command.text
        assert (pulled / FILE).read_text() == config
        assert [each.answers() for each in fleet] == [LIVE, LIVE]
        with rolling_out(fleet, *source, **IDENTITY) as command:
            code, report = command.finish()
        assert (code, report["outcome"]) == (0, "promoted"), command.text
        assert [each.answers() for each in fleet] == [NEW, NEW]
    assert git(origin, "log", "--format=%s", "main").splitlines() == [
        f"Set labels of m: stable to version {NEW}",
        f"Set labels of m: canary to version {NEW}",
        f"Set labels of m: canary to none, stable to version {LIVE}",
        f"Set labels of m: stable to version {BAD}",
        f"Set labels of m: canary to version {BAD}",
        "Begin",
    ]


# A DNS name.


@contextmanager
def tls_server(shared: Path, authority: Authority, folder: Path) -> Iterator[int]:
    """Start a server at 127.0.0.1 whose certificate is for localhost alone, and return its port."""
    own, port = authority.issue("localhost"), free_ports(1)[0]
    flags = [f"--port={port}", "--bind_address=127.0.0.1", "--rest_api_port=0", f"--model_config_file={shared}"]
    flags += [f"--tls_cert_file={own.cert}", f"--tls_key_file={own.key}"]
    with (folder / "log").open("wb") as log, subprocess.Popen([EXECUTABLE, *flags], stdout=log, stderr=log) as process:
        try:
            with Client(f"grpcs://localhost:{port}", tls=Tls(authority.ca)) as client:
                for version in (LIVE, NEW):
                    client.wait_until_ready(90, "m", version=version)
            yield port
        finally:
            process.terminate()


def test_replicas_of_a_name_have_certificates_of_the_name(shared: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with tls_server(shared, authority, tmp_path) as port:
        name = ("--replicas", f"dns:grpcs://localhost:{port}", "--ca", str(authority.ca), "--soak", "0")
        rollout = ("m", "--to", str(NEW), "--model_config_file", str(shared), *name, "--execute")
        with running_rollout(*rollout) as command:
            code, report = command.finish()
        assert code == 0, command.text
        with Client(f"grpcs://localhost:{port}", tls=Tls(authority.ca)) as client:
            assert client.metadata("m", label="stable").version == NEW
    assert [replica["address"] for replica in report["replicas"]] == [f"grpcs://127.0.0.1:{port}"]


# Usage errors.


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--source", "configmap:models"], "expected file, git-patch, configmap:NAMESPACE/NAME"),
        (["--source", "configmap:a/b", "--apply", "reload"], "--apply reload needs --source file"),
        (["--source", "file"], "--source file needs --model_config_file"),
        (["--replicas", "dns:name"], "expected dns:NAME:PORT"),
        (["--replicas", "http://127.0.0.1:8501"], "of the gRPC port"),
    ],
)
def test_invalid_sources_and_replicas_are_exit_code_2(arguments: list[str], complaint: str) -> None:
    with running_rollout("m", "--to", str(NEW), *arguments) as command:
        code, report = command.finish()
    assert (code, report) == (2, {})
    assert complaint in " ".join(command.text.split())
