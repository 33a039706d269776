"""Tests for `tpuserve deploy render`: overlays of versions that libtpu compiled, and refusals."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.deploy.dockerfile import ROOT
from tests.exporter.checked_manifests import GIB, preflight_rows, write_checked
from tests.exporter.conftest import Finished
from tests.exporter.shaped_versions import write_classifier, write_lookup, write_wide
from tpuserve_exporter.command.checking import command as check_command
from tpuserve_exporter.command.deploying import deploy
from tpuserve_formats.manifest import MANIFEST_FILE

COMMAND = Path(sys.executable).with_name("tpuserve-deploy")
MANIFESTS = ROOT / "deploy/kubernetes"
SEARCH = {"model": "digits", "objectives": ["p99<=20ms"], "rows_per_request": 1, "rate_per_s": 1043.5}

# Compilers use every core, so one process runs all their tests.
pytestmark = [pytest.mark.xdist_group(__name__)]
compiles = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, which has wheels for Linux on x86-64, is not installed"
)


def run(command: click.Command, *arguments: object) -> Finished:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    if isinstance(done.exception, click.ClickException):
        return Finished(done.exception.exit_code, done.stdout, done.exception.format_message())
    assert done.exception is None, done.exception
    return Finished(done.return_value, done.stdout, done.stderr)


def render(version: Path, output: Path, *arguments: object, tpu: str = "v5e:1x1") -> Finished:
    options = ("--version", version, "--tpu", tpu, "--output", output, "--manifests", MANIFESTS)
    return run(deploy, "render", *options, *arguments)


def check(version: Path, tpu: str, *arguments: object) -> Path:
    """Compile the version, and return the file with the report."""
    report = version.with_name(f"check-{tpu.replace(':', '-')}.json")
    report.write_text(run(check_command, version, "--tpu", tpu, *arguments, "--json").out)
    return report


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    version = write_classifier(tmp_path_factory.mktemp("classifier") / "digits/3")
    manifest = version / MANIFEST_FILE
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "fingerprint": "5eed"}))
    return version


@compiles
def test_an_unchecked_version_is_refused_with_the_command_that_checks_it(classifier: Path, tmp_path: Path) -> None:
    refused = render(classifier, tmp_path / "overlay")
    assert refused.code == 4
    assert "version 3 was checked for no TPU, and not for v5e:1x1. Run\n" in refused.err
    line = next(line for line in refused.err.splitlines() if "tpuserve check" in line)
    words, _, name = line.strip().partition(" > ")
    assert words == f"tpuserve check {classifier} --tpu v5e:1x1 --json"
    with (tmp_path / name).open("w") as report:
        # As the message says, in a shell.
        subprocess.run(words, shell=True, cwd=tmp_path, env=_environment(), stdout=report, check=True)
    assert json.loads((tmp_path / name).read_text())["fingerprint"] == "5eed"
    assert f"--check {name}" in refused.err
    done = render(classifier, tmp_path / "overlay", "--check", tmp_path / name, "--json")
    assert done.code == 0, done.err
    assert done.document["batch_sizes"] == [1, 8]
    assert 120 < done.document["startup_s"] < 600
    assert sorted(path.name for path in (tmp_path / "overlay").iterdir()) == ["deployment.yaml", "kustomization.yaml"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@compiles
def test_a_version_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    version = write_lookup(tmp_path / "search/7")
    refused = render(version, tmp_path / "overlay", "--check", check(version, "v5e:1x1"))
    assert refused.code == 4
    assert (
        "version 7 cannot run on v5e:1x1: batch 8: does not fit: needs 40.00 of 15.75 GiB, 24.25 GiB too much. "
        f"`tpuserve check {version} --tpu v5e:1x1` lists alternatives that fit"
    ) in refused.err
    assert not (tmp_path / "overlay").exists()


@compiles
def test_programs_that_do_not_fit_together_are_refused_with_the_numbers(tmp_path: Path) -> None:
    version = write_wide(tmp_path / "wide/1")
    refused = render(version, tmp_path / "overlay", "--check", check(version, "v5e:1x1"))
    assert refused.code == 4
    assert "version 1 cannot run on v5e:1x1: all programs together need 16." in refused.err
    assert " of 15.75 GiB a device, " in refused.err


@compiles
def test_a_sharded_version_keeps_the_mesh_of_its_check(tmp_path: Path) -> None:
    version = write_lookup(tmp_path / "search/7", [{"pattern": "table", "axes": ["model", None]}])
    assert (
        f"tpuserve check {version} --tpu v6e:2x2 --mesh model=4 --json"
        in render(version, tmp_path / "overlay", tpu="v6e:2x2").err
    )
    report = check(version, "v6e:2x2", "--mesh", "model=4")
    done = render(version, tmp_path / "overlay", "--check", report, tpu="v6e:2x2")
    assert done.code == 0, done.err
    assert "devices      4 of 4, --mesh model=4" in done.out
    assert "value: --mesh=model=4" in (tmp_path / "overlay/kustomization.yaml").read_text()


def test_a_report_of_another_version_is_refused(tmp_path: Path) -> None:
    version = write_checked(tmp_path / "digits/3")
    report = tmp_path / "check.json"
    for other in ({**preflight_rows(batch_sizes=(1, 16))}, {**preflight_rows(), "fingerprint": "other"}):
        report.write_text(json.dumps(other))
        refused = render(version, tmp_path / "overlay", "--check", report)
        assert (refused.code, refused.err) == (
            2,
            f"error: --check {report} is the report of another version than {version}\n",
        )


def test_replicas_and_cost_follow_from_a_load_test(tmp_path: Path) -> None:
    report = tmp_path / "search.json"
    report.write_text(json.dumps(SEARCH))
    demand = ("--loadtest", report, "--rate", "5000", "--price-per-hour", "1.20 EUR")
    done = render(write_checked(tmp_path / "digits/3"), tmp_path / "overlay", *demand)
    assert done.code == 0, done.err
    assert "6: 5 for 5,000 requests/s at 1,043.5/s each with p99<=20ms, and 1 as headroom. Utilization 80 %" in done.out
    assert "7.2 EUR/h: 6 x 1.2 EUR/h. 0.4 EUR per million predictions, at 5,000 predictions/s" in done.out
    kustomization = (tmp_path / "overlay/kustomization.yaml").read_text()
    assert "path: /spec/minReplicas\n      value: 6\n" in kustomization
    assert "path: /spec/maxReplicas\n      value: 12\n" in kustomization


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "1e9"])
def test_a_rate_without_a_sensible_number_of_servers_is_refused(tmp_path: Path, rate: str) -> None:
    report = tmp_path / "search.json"
    report.write_text(json.dumps(SEARCH))
    refused = render(write_checked(tmp_path / "digits/3"), tmp_path / "overlay", "--loadtest", report, "--rate", rate)
    assert refused.code == 2
    assert "--rate" in refused.err


def test_files_are_replaced_only_with_force(tmp_path: Path) -> None:
    version, overlay = write_checked(tmp_path / "digits/3"), tmp_path / "overlay"
    assert render(version, overlay).code == 0
    first = (overlay / "kustomization.yaml").read_text()
    (overlay / "mine.yaml").write_text("mine")
    refused = render(version, overlay, "--replicas", "5")
    assert refused.code == 5
    assert (
        refused.err == f"error: {overlay}/kustomization.yaml exists. Use another --output, or --force to replace it\n"
    )
    assert (overlay / "kustomization.yaml").read_text() == first
    assert render(version, overlay, "--replicas", "5", "--force").code == 0
    assert "value: 5" in (overlay / "kustomization.yaml").read_text()
    assert (overlay / "mine.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--rate", "5"), 2, "--rate and --loadtest have no effect alone. Set both, or use --replicas"),
        (("--headroom", "2"), 2, "--headroom has no effect without --rate. Add --rate and --loadtest"),
        (("--max-replicas", "1"), 2, "--max-replicas 1 is below the 2 servers of the overlay"),
        (("--image", "server"), 2, "'server' is not an image. Write NAME:TAG or NAME@sha256:DIGEST"),
        (("--price-per-hour", "free"), 2, "'free' is not a price per hour"),
        (("--model-name", "a b"), 2, "'a b' is not a model name of up to 63 letters"),
        (("--manifests", "nowhere"), 6, "--manifests nowhere has no base/kustomization.yaml"),
    ],
)
def test_options_that_do_not_work_are_named(tmp_path: Path, options: tuple[str, ...], code: int, message: str) -> None:
    refused = render(write_checked(tmp_path / "digits/3"), tmp_path / "overlay", *options)
    assert refused.code == code
    assert message in refused.err
    assert not (tmp_path / "overlay").exists()


def test_a_directory_without_programs_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "digits/1/assets.extra/tpuserve"
    plain.mkdir(parents=True)
    (plain / "manifest.json").write_text('{"files": {}}')
    refused = render(tmp_path / "digits/1", tmp_path / "overlay")
    assert (refused.code, refused.err) == (
        6, "error: version 1 has no device programs. Export it again with --tpu or --device-programs\n",
    )  # fmt: skip
    assert "is a base path. Use one of its versions, such as" in render(tmp_path / "digits", tmp_path / "overlay").err
    version = write_checked(tmp_path / "digits/latest")
    assert "is not named by a number" in render(version, tmp_path / "overlay").err


def test_a_failure_is_one_json_document(tmp_path: Path) -> None:
    rows = preflight_rows(needed_bytes=16 * GIB)
    done = render(write_checked(tmp_path / "digits/3", rows), tmp_path / "overlay", "--json")
    assert (done.code, done.document["kind"], done.document["exit_code"]) == (4, "DoesNotFit", 4)
    assert "need 16.00 of 15.75 GiB a device, 0.25 GiB too much" in done.document["error"]


def test_the_program_has_help_with_exit_codes_and_does_not_wait_for_tensorflow() -> None:
    done = subprocess.run([COMMAND, "render", "--help"], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("Usage: tpuserve deploy render [OPTIONS]")
    codes = [line.split()[0] for line in done.stdout.split("Exit codes:")[1].splitlines() if line.startswith("    ")]
    assert codes == ["0", "1", "2", "4", "5", "6", "130"]
    look = "import sys, tpuserve_exporter.command.deploying; print({'tensorflow', 'keras', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
