"""Tests that versions appear atomically and that concurrent exports lose no version."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tpuserve_exporter.destinations.local_directory import LocalDirectory
from tpuserve_exporter.destinations.staging import choose_number
from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.options.export_options import VersionChoice

EXPORTERS = 8


def _race(base: Path, version: VersionChoice) -> list[str]:
    """Publish from several threads at once. The content of each version names its thread."""
    barrier, outcomes = threading.Barrier(EXPORTERS), []

    def export(name: str) -> None:
        directory = LocalDirectory(base)
        with directory.staging() as staged:
            staged.mkdir()
            (staged / "owner").write_text(name)
            barrier.wait()
            try:
                outcomes.append(f"{name} got {directory.publish(staged, version)}")
            except PublishFailed:
                outcomes.append(f"{name} got none")

    threads = [threading.Thread(target=export, args=(str(index),)) for index in range(EXPORTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("version", ["next", "timestamp"])
def test_racing_exporters_each_get_a_version_of_their_own(tmp_path: Path, version: VersionChoice) -> None:
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
    directory = LocalDirectory(tmp_path)
    with directory.staging() as staged:
        staged.mkdir()
        with pytest.raises(PublishFailed, match=r"version 4 of .* already exists"):
            directory.publish(staged, 4)
        assert directory.publish(staged, "next") == 5


def test_next_is_after_the_highest_number_and_nothing_else(tmp_path: Path) -> None:
    for name in ("9", "10", ".tpuserve-export-x", "11.old", "latest"):
        (tmp_path / name).mkdir()
    directory = LocalDirectory(tmp_path)
    with directory.staging() as staged:
        staged.mkdir()
        assert directory.publish(staged, "next") == 11


@pytest.mark.parametrize(
    ("choice", "taken", "number"),
    [
        ("next", [], 1),
        ("next", [2, 9], 10),
        ("timestamp", [3], 1000),
        ("timestamp", [1000], 1001),
        ("timestamp", [5000], 5001),
        (7, [9], 7),
    ],
)
def test_numbers(choice: VersionChoice, taken: list[int], number: int) -> None:
    assert choose_number(choice, taken, now_s=1000.9) == number


def test_a_failed_export_leaves_no_trace(tmp_path: Path) -> None:
    base = tmp_path / "models" / "of" / "mine"

    def fail() -> None:
        with LocalDirectory(base).staging() as staged:
            assert staged.parent.name.startswith(".")
            staged.mkdir()
            (staged / "half").write_text("written")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_directories_that_could_only_be_made_in_part_are_removed(tmp_path: Path) -> None:
    base = tmp_path / "models" / ("n" * 300)  # longer than the limit for file names
    with pytest.raises(PublishFailed, match="cannot write to"), LocalDirectory(base).staging():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_published_version_keeps_its_directories(tmp_path: Path) -> None:
    base = tmp_path / "models" / "mine"
    directory = LocalDirectory(base)
    with directory.staging() as staged:
        staged.mkdir()
        directory.publish(staged, "next")
    assert [path.name for path in base.iterdir()] == ["1"]


HOLD = """
import sys, time
from pathlib import Path
from tpuserve_exporter.destinations.local_directory import LocalDirectory

with LocalDirectory(Path(sys.argv[1])).staging() as staged:
    staged.mkdir()
    (staged / "weights").write_text("half of them")
    print("writing", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_export_has_left_is_removed_by_the_next_and_what_another_writes_is_not(tmp_path: Path) -> None:
    (tmp_path / ".tpuserve-export-of-another-make").mkdir()
    with (
        subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as killed,
        subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as alive,
    ):
        try:
            for process in (killed, alive):
                assert process.stdout is not None
                assert process.stdout.readline() == b"writing\n"
            killed.kill()
            killed.wait()
            assert len(list(tmp_path.glob(".tpuserve-export-*/version/weights"))) == 2
            with LocalDirectory(tmp_path).staging() as staged:
                staged.mkdir()
                assert len(list(tmp_path.glob(".tpuserve-export-*/version/weights"))) == 1
        finally:
            alive.terminate()
    assert [path.name for path in tmp_path.iterdir() if "another-make" in path.name]
