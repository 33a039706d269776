"""Tests for `tpuserve rollout` against a real server with a good, a wrong and a slow version."""

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.loadtests.recorded_logs import predict_entry, write_log
from tests.loadtests.rollout_process import HEEDING_CTRL_C, QUICK, TIRED_AFTER, TIRING, save_tired
from tests.support import forked_command
from tests.support.saved_models import save_function, write_manifest
from tpuserve_client import Client
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.access import Access
from tpuserve_loadtests.golden.tolerance import Precision, fetch_precision
from tpuserve_loadtests.monitoring.metrics_page import Page
from tpuserve_loadtests.requests.recording import WARMUP_FILE
from tpuserve_loadtests.rollout.labels import Labels
from tpuserve_loadtests.rollout.model_config_text import ModelConfigText
from tpuserve_loadtests.rollout.model_service import ModelService
from tpuserve_loadtests.rollout.moves import NotMoved
from tpuserve_loadtests.rollout.replicas import Place, Replicas
from tpuserve_loadtests.rollout.sources import ConfigFile

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

LIVE, GOOD, WRONG, SLOW, FAILING, COARSE, TIRED = 3, 4, 5, 6, 7, 8, 9


def evaluated(value: float) -> dict[str, Any]:
    metric = {"metric": "accuracy", "signature": "serving_default", "output": "y", "labels": "label", "value": value,
              "operator": ">=", "bound": 0.9}  # fmt: skip
    return {"file": "held_out.npz", "sha256": "ab12", "rows": 450, "metrics": [metric]}


# Precisions and metrics in the manifests of some versions.
FACTS: dict[int, dict[str, Any]] = {
    LIVE: {"compute_dtype": "float32", "parity": {"atol": 1e-5, "rtol": 1e-4}, "evaluation": evaluated(0.97)},
    GOOD: {"evaluation": evaluated(0.98)},
    COARSE: {"compute_dtype": "mixed_bfloat16", "parity": {"atol": 0.02, "rtol": 0.02}},
}


def slowly_doubled(x: tf.Tensor) -> dict[str, tf.Tensor]:
    counted = tf.while_loop(lambda i, _: i < 8000, lambda i, a: (i + 1, a + 0.0 * a), (0, x))[1]
    return {"y": 2 * x + 0 * counted}


def failing(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return a result only for the warm-up input, and fail otherwise."""
    with tf.control_dependencies([tf.debugging.assert_equal(x, tf.zeros_like(x))]):
        return {"y": 2 * x}


@dataclass
class Site:
    """A server, its configuration file, and the versions of its labels."""

    server: RunningServer
    file: Path

    def rollout(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        options = ["m", "--model_config_file", str(self.file), "--grpc", self.server.grpc, *QUICK, *arguments]
        brief = {"tpuserve_loadtests.cli.commands.LEAST_SOAK_S": 2.0}  # the default is 10
        run = forked_command.run("tpuserve-rollout", *options, constants=brief, timeout_s=240)
        return run.returncode, json.loads(run.stdout or "{}"), run.stderr

    def answers(self, label: str) -> int | None:
        with Client(self.server.grpc) as client:
            return client.predict("m", {"x": np.ones((1, 4), np.float32)}, label=label).version


def configuration(root: Path) -> str:
    return f"""\
# Written by a person.
model_config_list {{
  config {{
    name: "m" base_path: "{root}/m" model_platform: "tensorflow"
    model_version_policy {{ all {{}} }}
    version_labels {{ key: "stable" value: {LIVE} }}
  }}
  config {{ name: "other" base_path: "{root}/other" model_platform: "tensorflow" }}
}}
"""


def wait_for_labels(server: RunningServer) -> None:
    """Wait for all versions: a model is ready with its first version, but a label needs its own."""
    with Client(server.grpc) as client:
        for version in (LIVE, GOOD, WRONG, SLOW, FAILING, COARSE, TIRED):
            client.wait_until_ready(90, "m", version=version)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rollout")
    spec = tf.TensorSpec([None, 4], tf.float32, "x")
    functions = {
        LIVE: lambda x: {"y": 2 * x},
        GOOD: lambda x: {"y": x + x},
        WRONG: lambda x: {"y": 2 * x + 0.1},
        SLOW: slowly_doubled,
        FAILING: failing,
        COARSE: lambda x: {"y": 2.005 * x},
    }
    for version, function in functions.items():
        write_manifest(save_function(root / "m" / str(version), function, spec), **FACTS.get(version, {}))
    save_tired(root / "m" / str(TIRED), TIRED_AFTER)
    shutil.copytree(root / "m" / str(LIVE), root / "other" / "1")
    return root


@pytest.fixture(scope="module")
def running(models: Path) -> Iterator[Site]:
    file = models / "models.config"
    file.write_text(configuration(models))
    flags = (f"--model_config_file={file}",)
    with run_configured_server(models / "log", *flags, model="m") as server:
        wait_for_labels(server)
        yield Site(server, file)


@pytest.fixture
def site(running: Site, models: Path) -> Site:
    """Restore the initial labels."""
    running.file.write_text(configuration(models))
    with ModelService(running.server.grpc, Access(), 10, 60) as service:
        service.reload(ModelConfigText(running.file.read_text()).message)
    return running


def test_a_good_version_is_promoted_and_the_rest_of_the_configuration_stays(
    site: Site, models: Path, tmp_path: Path
) -> None:
    page = tmp_path / "rollout.html"
    code, plan, errors = site.rollout("--to", str(GOOD), "--html", str(page))
    assert code == 0, errors
    assert "Plan: nothing was changed" in page.read_text()
    assert "Metrics on labelled rows" in page.read_text()
    [metric] = plan["metrics"]
    assert (metric["live"]["value"], metric["new"]["value"], metric["verdict"]) == (0.97, 0.98, "better")
    line = "accuracy of serving_default/y: 0.97 to 0.98, better (450 rows of held_out.npz)"
    assert line in errors
    assert plan["outcome"] == "planned"
    assert [step["state"] for step in plan["steps"]] == ["passed", *["planned"] * 6]
    assert site.file.read_text() == configuration(models)
    assert site.answers("stable") == LIVE

    code, report, errors = site.rollout("--to", str(GOOD), "--execute", "--html", str(page))
    assert code == 0, (report, errors)
    assert report["outcome"] == "promoted"
    assert all(part in page.read_text() for part in ("Version 4 is live", "Ratio of B to A", "Soak: the new version"))
    assert [step["name"] for step in report["steps"]] == [
        "parity", "shadow", "label canary", "canary", "label stable", "soak", "replicas",
    ]  # fmt: skip
    assert "32 responses of label stable: 32 by version 4" in report["steps"][-1]["detail"]
    [replica] = report["replicas"]
    assert (replica["address"], replica["lacks"]) == (site.server.grpc, "")
    assert replica["sha256"] == ModelConfigText(site.file.read_text()).sha256
    assert (site.answers("stable"), site.answers("canary")) == (GOOD, GOOD)
    lines = set(site.file.read_text().splitlines()) ^ set(configuration(models).splitlines())
    assert lines == {
        f'    version_labels {{ key: "stable" value: {LIVE} }}',
        f'    version_labels {{ key: "stable" value: {GOOD} }}',
        f'    version_labels {{ key: "canary" value: {GOOD} }}',
    }
    with Client(site.server.grpc) as client:
        assert client.predict("other", {"x": np.ones((1, 4), np.float32)}).version == 1


@pytest.mark.parametrize(
    ("version", "gate", "options"),
    # Longer than QUICK, because one stall in a round of the live version would hide that the slow one is worse.
    [(WRONG, "parity", ()), (SLOW, "shadow", ("--duration", "2s", "--rounds", "5"))],
    ids=["wrong", "slow"],
)
def test_a_bad_version_is_refused_and_no_label_is_touched(
    site: Site, models: Path, version: int, gate: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    page, junit = tmp_path / "rollout.html", tmp_path / "rollout.xml"
    files = ("--html", str(page), "--junit", str(junit))
    code, report, errors = site.rollout("--to", str(version), "--execute", *files, *options)
    assert code == 99, (report, errors)
    assert report["outcome"] == "refused"
    assert report["steps"][-1]["name"] == gate
    assert report["steps"][-1]["state"] == "failed"
    cases = ElementTree.parse(junit).iter("testcase")
    assert [case.get("name") for case in cases if case.find("failure") is not None] == [gate]
    assert f"Version {version} was refused" in page.read_text()
    assert f'id="{gate}"' in page.read_text()
    assert site.file.read_text() == configuration(models)
    assert site.answers("stable") == LIVE


def test_a_coarser_version_is_held_to_its_own_manifest_and_a_reader_sees_which(site: Site) -> None:
    code, plan, errors = site.rollout("--to", str(COARSE))
    assert code == 0, (plan, errors)
    detail = plan["steps"][0]["detail"]
    assert "32 of 32 responses match; largest difference " in detail
    assert "in `y`, allowed 0.02 + 0.02 * |golden| (mixed_bfloat16, from m version 8's manifest; change" in detail
    code, plan, _ = site.rollout("--to", str(COARSE), "--atol", "1e-5", "--rtol", "1e-4")
    assert code == 99
    assert "(set with --atol and --rtol)" in plan["steps"][0]["detail"]
    # Neither manifest allows such a difference.
    code, plan, _ = site.rollout("--to", str(WRONG))
    assert code == 99
    assert "(float32, from m version 3's manifest; change with --atol/--rtol)" in plan["steps"][0]["detail"]


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_server_reports_the_precision_of_a_manifest(site: Site, protocol: Literal["grpc", "rest"]) -> None:
    address = site.server.grpc if protocol == "grpc" else site.server.rest
    with closing(Access().transport(address)) as transport:
        found = {
            version: fetch_precision(lambda exchange: transport.send(exchange, 30), protocol, ModelSpec("m", version))
            for version in (LIVE, GOOD, COARSE, 99)
        }
    assert found[COARSE] == Precision("mixed_bfloat16", 0.02, 0.02, "m version 8's manifest")
    assert found[LIVE] == Precision("float32", 1e-5, 1e-4, "m version 3's manifest")
    assert found[GOOD] is found[99] is None


def test_golden_answers_are_judged_by_the_manifests_of_both_versions(site: Site, models: Path) -> None:
    """Compare another version's responses with the requests and responses of the live version."""
    version = models / "m" / str(LIVE)
    row = np.ones((1, 4), np.float32)
    write_log(version / WARMUP_FILE, [predict_entry({"x": row}, outputs={"y": 2 * row}, model="m")])
    command = ["tpuserve-loadtest", "m", "--version", str(COARSE), "--golden"]
    command += [str(version), "--grpc", site.server.grpc, "--users", "2", "--duration", "500ms", "--warm-up", "0"]
    command += ["--check-share", "1", "--generator-limit", "note", "--json"]
    run = forked_command.run(*command)
    total = json.loads(run.stdout)["total"]
    assert (run.returncode, total["wrong"]) == (0, 0), run.stdout
    assert total["checked"] > 0
    command += ["--atol", "1e-4", "--rtol", "0"]
    strict = forked_command.run(*command)
    (error,) = json.loads(strict.stdout)["errors"]
    assert error["message"].endswith("allowed 0.0001 (set with --atol and --rtol)")


def test_a_comparison_that_cannot_tell_is_not_passed(site: Site) -> None:
    before = site.file.read_text()
    # No run of less than a second can detect a difference of 0.1 %, except by chance.
    effect = ["--unclear", "fail", "--least-effect", "0.001"]
    code, report, _ = site.rollout("--to", str(GOOD), "--execute", *effect)
    assert code in (97, 99)
    assert [step["state"] for step in report["steps"]] == ["passed", "failed"]
    assert code == 99 or "run longer, increase --rounds" in report["steps"][1]["detail"]
    assert site.file.read_text() == before


def test_a_version_that_fails_each_request_is_refused(site: Site) -> None:
    code, report, errors = site.rollout("--to", str(FAILING), "--execute", "--no-parity")
    assert code == 1, (report, errors)
    assert report["outcome"] == "refused"
    assert report["steps"][-1]["detail"].startswith(f"m version {FAILING}: grpc, request 1 of 32: INVALID_ARGUMENT: ")


def test_a_soak_that_cannot_pass_any_more_moves_the_labels_back_at_once(site: Site) -> None:
    code, report, errors = site.rollout("--to", str(TIRED), "--execute", *TIRING)
    assert code == 99, (report, errors)
    assert report["outcome"] == "moved back"
    assert [step["name"] for step in report["steps"]][-3:] == ["label stable", "soak", "labels back"]
    assert "stopped early: wrong>0 is certain" in report["steps"][-2]["detail"]
    assert "most frequent error: wrong response: output 'y' differs by 1" in report["steps"][-2]["detail"]
    assert site.answers("stable") == LIVE
    assert "canary" not in site.file.read_text()


def answers_of(server: RunningServer) -> float:
    with urllib.request.urlopen(f"{server.rest}/metrics", timeout=60) as page:
        return Page.parse(page.read().decode()).total("tpuserve_requests_total") or 0.0


def press_twice_while_it_hangs(process: "subprocess.Popen[str]", server: RunningServer) -> None:
    """Press Ctrl-C twice while the server hangs.

    The second press ends the wait for responses, but not the move of labels back. Then the server continues.
    """
    [serving] = psutil.Process(server.process.pid).children()
    serving.suspend()
    try:
        time.sleep(0.3)  # until requests are in flight
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert any("Ctrl-C again" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert any("soak" in line for line in process.stderr)  # the soak is over
    finally:
        serving.resume()


@pytest.mark.parametrize("hangs", [False, True], ids=["SIGTERM", "Ctrl-C twice, while the server hangs"])
def test_a_signal_in_the_soak_moves_the_labels_back(site: Site, hangs: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HEEDING_CTRL_C, "m", "--model_config_file", str(site.file)]
    command += ["--grpc", site.server.grpc, *QUICK]
    command += ["--to", str(GOOD), "--execute", "--no-parity", "--soak", "1h", "--timeout", "10m"]
    command += ["--html", str(tmp_path / "page.html")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "label stable" in line:
                    break
            assert site.answers("stable") == GOOD
            before = answers_of(site.server)
            while answers_of(site.server) < before + 10:  # until the soak runs
                time.sleep(0.1)
            if hangs:
                press_twice_while_it_hangs(process, site.server)
            else:
                process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=200)
        finally:
            process.kill()
    report = json.loads(output)
    assert process.returncode == 130, errors
    assert report["outcome"] == "moved back"
    assert [step["name"] for step in report["steps"]][-3:] == ["soak", "interrupted", "labels back"]
    assert "Interrupted, and the labels were moved back" in (tmp_path / "page.html").read_text()
    assert site.answers("stable") == LIVE


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--to", "99"], "Version 99 of m is not available (available: 3, 4, 5, 6, 7, 8, 9)"),
        (["--to", str(LIVE)], "is already live"),
        (["--to", "4", "--stable", "live"], "m has no label live"),
        (["--to", "4", "--canary", "stable"], "are both stable"),
        (["--to", "4", "--soak", "1s"], "to show a trend"),
        (["--to", "4", "--fail-if", "fast"], "is not a threshold"),
        (["--to", "4", "--slo", "small.p99<=1s"], "small.p99>1s selects no line. The lines are: grpc"),
        (["--to", "4", "--html", "nowhere/page.html"], "Directory nowhere does not exist"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(site: Site, arguments: list[str], complaint: str) -> None:
    code, report, errors = site.rollout(*arguments, "--execute")
    assert code == 2
    assert report == {}
    assert complaint in errors


def test_a_file_that_is_not_what_the_server_runs_is_refused(site: Site, models: Path, tmp_path: Path) -> None:
    for old, new, complaint in [
        ('name: "other"', 'name: "another"', "model another"),
        (f"value: {LIVE}", f"value: {SLOW}", "label stable of m is version 6 in the file, version 3 on the server"),
    ]:
        other = tmp_path / "models.config"
        other.write_text(configuration(models).replace(old, new))
        code, _, errors = Site(site.server, other).rollout("--to", str(GOOD), "--execute")
        assert code == 2
        assert "the file differs from the server" in errors
        assert complaint in errors
    assert site.answers("stable") == LIVE


def replicas_of(*servers: RunningServer) -> Replicas:
    return Replicas([Place(server.grpc) for server in servers], lambda at: ModelService(at, Access(), 10, 60))


def test_a_move_that_the_server_refuses_leaves_the_file_as_it_was(site: Site, models: Path) -> None:
    with replicas_of(site.server) as replicas:
        labels = Labels(ConfigFile(site.file), "m", replicas, "reload", 5)
        with pytest.raises(
            NotMoved, match="the server refused the reload: Request to assign label to version 99"
        ) as refused:
            labels.move({"stable": 99})
    assert f"label stable: version {LIVE} in the file, version {LIVE} on the server" in str(refused.value)
    assert site.file.read_text() == configuration(models)
    assert site.answers("stable") == LIVE


def test_a_file_that_somebody_else_changes_meanwhile_is_left_alone(site: Site) -> None:
    with replicas_of(site.server) as replicas:
        labels = Labels(ConfigFile(site.file), "m", replicas, "reload", 5)
        theirs = site.file.read_text() + "# theirs\n"
        site.file.write_text(theirs)
        with pytest.raises(NotMoved, match="another process changed"):
            labels.move({"stable": GOOD})
    assert site.file.read_text() == theirs
    assert site.answers("stable") == LIVE


def test_a_server_that_reads_its_file_again_is_waited_for(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(configuration(models))
    flags = (f"--model_config_file={file}", "--model_config_file_poll_wait_seconds=0.2")
    with run_configured_server(tmp_path / "log", *flags, model="m") as server:
        wait_for_labels(server)
        site = Site(server, file)
        code, report, errors = site.rollout("--to", str(GOOD), "--execute", "--apply", "poll", "--soak", "0")
        assert code == 0, (report, errors)
        assert site.answers("stable") == GOOD


def test_a_server_that_stops_in_the_soak_leaves_the_old_labels_in_the_file(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "models.config"
    file.write_text(configuration(models))
    with run_configured_server(tmp_path / "log", f"--model_config_file={file}", model="m") as server:
        wait_for_labels(server)
        command = [sys.executable, "-c", HEEDING_CTRL_C, "m", "--model_config_file", str(file), "--grpc", server.grpc]
        command += [*QUICK, "--to", str(GOOD), "--execute", "--no-parity", "--soak", "1h", "--patience", "2s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert any("label stable" in line for line in process.stderr)
                server.process.kill()
                output, errors = process.communicate(timeout=200)
            finally:
                process.kill()
    report = json.loads(output)
    assert process.returncode == 3, errors
    assert report["outcome"] == "server gone"
    assert file.read_text() == configuration(models)
    assert "Waiting for the server, at most 2 s" in errors
    assert f"{file} has stable: version {LIVE}; a server that starts with this file" in report["steps"][-1]["detail"]
    with run_configured_server(tmp_path / "log", f"--model_config_file={file}", model="m") as server:
        wait_for_labels(server)
        assert Site(server, file).answers("stable") == LIVE
