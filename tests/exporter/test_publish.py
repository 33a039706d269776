"""Versions appear whole, and nobody's work is lost."""

import threading
from pathlib import Path

import pytest

from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.publish import next_version, publish, staging_directory

EXPORTERS = 8


def _race(base: Path, version: int | str) -> list[str]:
    """Publish from several threads at once; each one's content says whose it is."""
    barrier, outcomes = threading.Barrier(EXPORTERS), []

    def export(name: str) -> None:
        with staging_directory(base) as staged:
            staged.mkdir()
            (staged / "owner").write_text(name)
            barrier.wait()
            try:
                outcomes.append(f"{name} got {publish(staged, base, version)}")  # type: ignore[arg-type]  # as parsed
            except PublishFailed:
                outcomes.append(f"{name} got none")

    threads = [threading.Thread(target=export, args=(str(index),)) for index in range(EXPORTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("version", ["next", "timestamp"])
def test_racing_exporters_each_get_a_version_of_their_own(tmp_path: Path, version: str) -> None:
    outcomes = _race(tmp_path, version)
    found = [f"{(path / 'owner').read_text()} got {path.name}" for path in tmp_path.iterdir()]
    assert sorted(found) == sorted(outcomes)
    assert len(found) == EXPORTERS


def test_of_racing_exporters_one_gets_the_number_all_asked_for(tmp_path: Path) -> None:
    outcomes = _race(tmp_path, 5)
    winners = [outcome for outcome in outcomes if outcome.endswith("got 5")]
    assert len(winners) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["5"]
    assert f"{(tmp_path / '5' / 'owner').read_text()} got 5" == winners[0]


def test_an_empty_directory_of_that_number_counts_as_taken(tmp_path: Path) -> None:
    (tmp_path / "4").mkdir()
    with staging_directory(tmp_path) as staged:
        staged.mkdir()
        with pytest.raises(PublishFailed, match=r"version 4 of .* is taken"):
            publish(staged, tmp_path, 4)
        assert publish(staged, tmp_path, "next") == 5


def test_next_is_after_the_highest_number_and_nothing_else(tmp_path: Path) -> None:
    assert next_version(tmp_path / "absent") == 1
    for name in ("9", "10", ".tpuserve-export-x", "11.old", "latest"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path) == 11


def test_a_failed_export_leaves_no_trace(tmp_path: Path) -> None:
    base = tmp_path / "models" / "of" / "mine"

    def fail() -> None:
        with staging_directory(base) as staged:
            assert staged.parent.name.startswith(".")
            staged.mkdir()
            (staged / "half").write_text("written")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_directories_that_could_only_be_made_in_part_are_removed(tmp_path: Path) -> None:
    base = tmp_path / "models" / ("n" * 300)  # longer than a file's name may be
    with pytest.raises(PublishFailed, match="cannot write to"), staging_directory(base):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_published_version_keeps_its_directories(tmp_path: Path) -> None:
    base = tmp_path / "models" / "mine"
    with staging_directory(base) as staged:
        staged.mkdir()
        publish(staged, base, "next")
    assert [path.name for path in base.iterdir()] == ["1"]
