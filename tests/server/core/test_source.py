import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpuserve_server.core.source import Source, find_versions, fingerprint_tree
from tpuserve_server.core.types import AspiredVersion


class Watch:
    """A source over one base path, polled by hand."""

    def __init__(self, base_path: Path, *, whole: bool | None = True, poll_wait_s: float = 1) -> None:
        self.reports: list[list[int]] = []
        self.whole = whole
        self.reported = threading.Condition()
        self.source = Source(
            {"m": base_path}, self._on_aspired, poll_wait_s=poll_wait_s, is_whole=lambda path: self.whole
        )

    def _on_aspired(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        with self.reported:
            self.reports.append(sorted(aspired))
            self.reported.notify_all()


def add(base_path: Path, name: str, content: str = "model") -> Path:
    path = base_path / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "saved_model.pb").write_text(content)
    return path


def test_the_highest_version_is_aspired(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    watch.source.poll()
    add(tmp_path, "0000002")
    add(tmp_path, "notes")
    add(tmp_path, "-3")
    (tmp_path / "7").write_text("a file")
    watch.source.poll()
    assert watch.reports == [[1], [2]]


def test_a_missing_base_path_changes_nothing_and_an_empty_one_takes_the_model_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(tmp_path / "absent")
    assert not watch.source.poll()
    assert not watch.source.poll()
    assert [record.message for record in caplog.records] == [
        f"Model m waits: its base path {tmp_path / 'absent'} does not exist"
    ]
    assert watch.reports == []
    (tmp_path / "absent").mkdir()
    watch.source.poll()
    assert watch.reports == [[]]


def test_deleting_a_version_falls_back_to_the_one_before(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    newest = add(tmp_path, "2")
    watch.source.poll()
    (newest / "saved_model.pb").unlink()
    newest.rmdir()
    watch.source.poll()
    assert watch.reports == [[2], [1]]


def test_a_copy_that_is_under_way_is_left_alone_until_it_holds_still(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1", "mod")
    assert not watch.source.poll()
    add(tmp_path, "1", "model whole")
    assert not watch.source.poll()
    assert watch.reports == []
    assert watch.source.poll()
    assert watch.reports == [[1]]


def test_the_version_before_is_kept_while_the_next_is_copied(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    watch.source.poll()
    watch.whole = None
    add(tmp_path, "2")
    watch.source.poll()
    watch.source.poll()
    assert watch.reports == [[1], [1], [2]]


def test_an_unreadable_base_path_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[str] = []
    add(tmp_path / "good", "1")
    (tmp_path / "bad").mkdir()
    source = Source(
        {"bad": tmp_path / "bad", "good": tmp_path / "good"},
        lambda name, aspired: reports.append(name),
        poll_wait_s=1,
        is_whole=lambda path: True,
    )
    real = Path.iterdir

    def iterdir(path: Path) -> object:
        if path.name == "bad":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert not source.poll()
    assert not source.poll()
    assert reports == ["good", "good"]
    assert [record.message for record in caplog.records] == [
        "Model bad cannot be looked at: PermissionError(13, 'Permission denied')"
    ]


def test_the_thread_polls_until_stopped(tmp_path: Path) -> None:
    watch = Watch(tmp_path, poll_wait_s=0.01)
    watch.source.start()
    add(tmp_path, "1")
    with watch.reported:
        assert watch.reported.wait_for(lambda: [1] in watch.reports, 10)
    add(tmp_path, "2")
    with watch.reported:
        assert watch.reported.wait_for(lambda: [2] in watch.reports, 10)
    watch.source.stop()


def test_a_poll_wait_of_zero_looks_once(tmp_path: Path) -> None:
    add(tmp_path, "1")
    watch = Watch(tmp_path, poll_wait_s=0)
    watch.source.start()
    watch.source._thread.join(10)
    assert watch.reports == [[1]]
    watch.source.stop()


def test_a_source_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    Watch(tmp_path).source.stop()


def test_two_folders_of_one_number_are_one_version(tmp_path: Path) -> None:
    add(tmp_path, "1")
    add(tmp_path, "01")
    add(tmp_path, str(2**63))
    assert find_versions(tmp_path) == {1: tmp_path / "01"}


def test_a_version_that_its_manifest_calls_incomplete_gets_time_and_then_its_say(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=False)
    add(tmp_path, "1")
    for _ in range(30):
        assert not watch.source.poll()
    assert watch.reports == []
    assert watch.source.poll()
    assert watch.reports == [[1]]


def test_a_version_that_comes_again_is_looked_at_anew(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    shutil.rmtree(add(tmp_path, "3"))
    add(tmp_path, "3")
    add(tmp_path, "2")
    watch.source.poll()
    shutil.rmtree(tmp_path / "3")
    watch.source.poll()
    watch.whole = None
    add(tmp_path, "3", "half")
    watch.source.poll()
    assert watch.reports == [[3], [2], [2]]


def test_an_unreadable_version_does_not_hide_the_others(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").symlink_to(tmp_path / "nowhere")
    watch.source.poll()
    watch.source.poll()
    assert watch.reports == [[2]]


def test_the_fingerprint_sees_every_change(tmp_path: Path) -> None:
    path = add(tmp_path, "1")
    seen = {fingerprint_tree(path)}
    (path / "variables").mkdir()
    (path / "variables" / "a").write_text("1")
    seen.add(fingerprint_tree(path))
    (path / "variables" / "a").write_text("12")
    seen.add(fingerprint_tree(path))
    (path / "variables" / "a").rename(path / "variables" / "b")
    seen.add(fingerprint_tree(path))
    assert len(seen) == 4
