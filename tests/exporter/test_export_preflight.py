"""Tests for `tpuserve export --tpu`: the preflight's findings are in the version and its reports or end the export."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner

from tests.deploy.dockerfile import ROOT
from tests.exporter import device_builders
from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.command import deploying, inspecting

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="libtpu, for Linux on x86-64, is not installed"
    ),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
DIGITS = ("--model", "examples.digits.model:build", "--batch-sizes", "1,4")


def test_a_version_carries_what_its_programs_take_on_a_tpu(
    export: Export, digits_checkpoint: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    rule = "hidden/kernel=-,model"
    done = export(
        digits_checkpoint, tmp_path / "m", *DIGITS, "--tpu", "v5litepod-4", "--mesh", "data=2,model=2", "--shard", rule,
        "--tpu-strict", "--report", page, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    device = read_manifest(tmp_path / "m/1")["device"]
    assert device["shard"] == [{"pattern": "hidden/kernel", "axes": [None, "model"]}]
    assert [(row["topology"], row["batch_size"], row["verdict"]) for row in device["preflight"]] == [
        ("v5e:2x2", 1, "compiles and fits"), ("v5e:2x2", 4, "compiles and fits"),
    ]  # fmt: skip
    assert device["preflight"][0]["mesh"] == {"data": 2, "model": 2}
    (together,) = device["preflight_together"]
    assert (together["topology"], together["mesh"], together["verdict"]) == ("v5e:2x2", {"data": 2, "model": 2}, "fits")
    assert together["side_by_side"] > 100
    assert done.document["suggested_batch_sizes"]
    assert "v5e:2x2, --mesh data=2,model=2: 15.75 GiB per device" in page.read_text()
    assert "All programs together: fits, " in page.read_text()
    expected = CliRunner().invoke(inspecting.command, [str(tmp_path / "m/1")], standalone_mode=False).stdout
    assert re.search(
        rf"device programs +2 for batches of 1, 4; lowered with jax {re.escape(jax.__version__)}", expected
    )
    assert re.search(r"on v5e:2x2 +all programs together: fits, over --mesh data=2,model=2", expected)
    arguments = [
        "render",
        "--version",
        str(tmp_path / "m/1"),
        "--tpu",
        "v5e:2x2",
        "--output",
        str(tmp_path / "overlay"),
    ]
    arguments += ["--manifests", str(ROOT / "deploy/kubernetes"), "--model-name", "digits"]
    rendered = CliRunner().invoke(deploying.deploy, arguments, standalone_mode=False)
    assert rendered.return_value == 0, rendered.stderr
    assert "devices      4 of 4, --mesh data=2,model=2" in rendered.stdout
    again = export(digits_checkpoint, tmp_path / "m", *DIGITS, "--device-programs", "--shard", rule)
    assert "Not published again: version 1 is identical" in again.out  # compile times do not distinguish versions


def test_a_model_that_fits_nowhere_is_not_published_where_that_was_asked(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    device_builders.spreading().save(tmp_path / "model.keras")
    arguments = (tmp_path / "model.keras", tmp_path / "m", "--batch-sizes", "2", "--tpu", "v5e:1x1", "--tpu-strict")
    done = export(*arguments, "--json")
    assert (done.code, done.document["kind"]) == (4, "CannotLower")
    assert (
        "1 of 1 programs do not compile or do not fit on the TPUs of --tpu. v5e:1x1, batch 2: does not fit: needs "
        in done.document["error"]
    )
    assert done.document["preflight"][0]["verdict"] == "does not fit"
    assert done.document["preflight_together"][0]["verdict"] == "does not fit"
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mesh", "model=4"), "--mesh needs --tpu"),
        (("--tpu-strict",), "--tpu-strict needs --tpu"),
        (("--shard", "kernel=model,-"), "--shard needs device programs. Add --device-programs or --tpu"),
        (("--tpu", "v5e:1x1", "--mesh", "model=4"), "--mesh model=4 needs 4 devices, but v5e:1x1 has 1"),
        (("--tpu", "v5litepod-3"), "'v5litepod-3' is not a known TPU"),
        (("--device-programs", "--shard", "nothing=model"), "'nothing=model' matches no weight. The weights are conv1"),
        (("--tpu", "v5e:2x2", "--mesh", "model=3", "--shard", "hidden/kernel=-,model"),
         "cannot split hidden/kernel of shape [1024, 64] along model=3: 64 is not a multiple of 3"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    export: Export, digits_checkpoint: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = export(digits_checkpoint, tmp_path / "m", *DIGITS, *arguments)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "m").exists()
