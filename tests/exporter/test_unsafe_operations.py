"""Tests that exports refuse operations that servers refuse, before they run, and record those that a user allows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.exporter.conftest import Finished, read_manifest
from tpuserve_exporter.command.checking import command as check_command
from tpuserve_exporter.command.inspecting import command as inspect_command
from tpuserve_exporter.sources.saved_model import directory
from tpuserve_exporter.sources.saved_model.file import check_source

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tensorflow")]
Export = Callable[..., Finished]
ONE = ("--batch-sizes", "1")


def save(folder: Path, written: Path) -> Path:
    """Save a SavedModel that reads a file and writes another one, whenever it runs."""
    import tensorflow as tf

    def attack(x: Any) -> dict[str, Any]:  # noqa: ANN401 - a tensor
        with tf.control_dependencies([tf.io.write_file(str(written), tf.io.read_file("/etc/hostname"))]):
            return {"y": x * 2}

    module = tf.Module()
    module.serve = tf.function(attack, input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    tf.saved_model.save(module, str(folder), signatures=module.serve)
    return folder


@pytest.mark.parametrize("options", [(), ("--freeze",), ("--device-programs",)])
def test_a_source_is_refused_before_anything_runs_it(export: Export, tmp_path: Path, options: tuple[str, ...]) -> None:
    finished = export(save(tmp_path / "saved", tmp_path / "written"), tmp_path / "m", *ONE, *options)
    assert finished.code == 13
    message = " ".join(finished.err.split())
    assert "saved has operations that servers refuse: ReadFile (node ReadFile, function " in message
    assert "use --allow-op ReadFile --allow-op WriteFile" in message
    assert "--allowed_ops=ReadFile,WriteFile" in message
    assert not (tmp_path / "written").exists()
    assert not (tmp_path / "m").exists()


def test_an_allowed_operation_is_a_warning_and_recorded(export: Export, tmp_path: Path) -> None:
    allowed = ("--allow-op", "ReadFile", "--allow-op", "WriteFile")
    finished = export(save(tmp_path / "saved", tmp_path / "written"), tmp_path / "m", *ONE, *allowed)
    assert finished.code == 0, finished.err
    assert "servers load this version only with --allowed_ops=ReadFile,WriteFile" in " ".join(finished.out.split())
    assert read_manifest(tmp_path / "m" / "1")["allowed_ops"] == ["ReadFile", "WriteFile"]
    checked = CliRunner().invoke(check_command, [str(tmp_path / "m" / "1")], standalone_mode=False)
    assert checked.return_value == 13
    assert "the version has operations that servers refuse" in checked.stderr


def test_inspect_names_the_operations_and_runs_none(tmp_path: Path) -> None:
    path = save(tmp_path / "saved", tmp_path / "written")
    done = CliRunner().invoke(inspect_command, [str(path)], standalone_mode=False)
    assert done.return_value == 0
    assert "! servers refuse this operation: WriteFile (node WriteFile, function " in done.stdout
    assert not (tmp_path / "written").exists()


def test_a_source_that_changes_after_the_check_is_loaded_as_it_was(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.saved_models import save_mlp

    source, attack = save_mlp(tmp_path / "saved"), save(tmp_path / "attack", tmp_path / "written")

    def check_and_swap(*arguments: Any) -> None:  # noqa: ANN401 - those of check_source
        check_source(*arguments)
        (attack / "saved_model.pb").rename(source / "saved_model.pb")

    monkeypatch.setattr(directory, "check_source", check_and_swap)
    finished = export(source, tmp_path / "m", *ONE, "--freeze")
    assert finished.code == 0, finished.err
    assert not (attack / "saved_model.pb").exists()
    assert not (tmp_path / "written").exists()


def test_a_version_of_a_text_source_has_the_checked_graph_alone(export: Export, tmp_path: Path) -> None:
    from tests.support.saved_models import as_text, save_mlp

    finished = export(as_text(save_mlp(tmp_path / "saved")), tmp_path / "m", *ONE)
    assert finished.code == 0, finished.err
    assert [file.name for file in (tmp_path / "m" / "1").glob("saved_model.*")] == ["saved_model.pb"]
