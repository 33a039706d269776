"""Tests for the separate stages of an export: later stages do not change the values of earlier stages."""

from pathlib import Path

import pytest

from tests.exporter import builders
from tpuserve_exporter.command.exporting import command
from tpuserve_exporter.command.options import parse_keywords
from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.reports.shown_progress import PlainProgress, RecordedProgress, choose_progress
from tpuserve_exporter.stages.job import Job, Warnings
from tpuserve_exporter.stages.run import open_model, prepare, staging_folder
from tpuserve_exporter.stages.writing import freeze_model, write_version

pytestmark = pytest.mark.usefixtures("tensorflow")


def prepare_job(base: Path, **options: object) -> Job:
    return prepare(
        parse_keywords(command, ["tiny", str(base)], options), RecordedProgress(choose_progress(silent=True))
    )


def test_warnings_are_shown_at_once_and_kept_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    warnings = Warnings(PlainProgress())
    warnings.add("the first")
    assert "the first" in "".join(capsys.readouterr())
    kept = warnings.messages
    warnings.add("the second")
    assert (kept, warnings.messages) == (("the first",), ("the first", "the second"))


def test_a_taken_version_is_refused_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "tiny" / "3").mkdir(parents=True)
    with pytest.raises(PublishFailed, match="version 3 of tiny already exists"):
        prepare_job(tmp_path / "tiny", version=3)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_stage_leaves_the_one_before_as_it_is(tmp_path: Path, freeze: bool) -> None:
    job = prepare_job(tmp_path / "base", freeze=freeze, dry_run=True)
    opened = open_model(job, builders.tiny())
    model, reference = opened.model, opened.reference
    frozen = freeze_model(job, opened)
    with staging_folder(job, frozen) as folder:
        written = write_version(job, frozen, folder)
        assert (folder / "saved_model.pb").is_file()
    assert not folder.exists()
    assert not (tmp_path / "base").exists()
    assert (opened.model, opened.reference) == (model, reference)
    assert (frozen.source.model is model, frozen.source.reference) == (not freeze, reference)
    assert (written.freezing is None) is not freeze
    assert written.source.reference is not reference
