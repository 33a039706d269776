import logging
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Pending


class Watch:
    """A source with one base path, polled by hand."""

    def __init__(
        self,
        base_path: Path,
        *,
        whole: bool | None = True,
        poll_wait_s: float = 1,
        policy: VersionPolicy | None = None,
    ) -> None:
        self.reports: list[list[int]] = []
        self.locations: list[str] = []
        self.batching: list[BatchingParameters | None] = []
        self.refusals: dict[int, str] = {}
        self.whole = whole
        self.reported = threading.Condition()
        self.pending = Pending()
        storage = LocalStorage(
            lambda path: {True: "", False: "a file is missing", None: None}[self.whole],
            version_file=lambda names: "saved_model.pb" if "saved_model.pb" in names else "",
        )
        self.source = Source(storage, self._on_aspired, poll_wait_s=poll_wait_s, on_pending=self._on_pending)
        self.config = ModelConfig("m", str(base_path), version_policy=policy or VersionPolicy.latest())
        self.source.watch([self.config])

    def _on_aspired(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        with self.reported:
            self.reports.append(sorted(aspired))
            self.refusals = {number: version.refusal for number, version in aspired.items()}
            self.batching = [version.batching for version in aspired.values()]
            self.locations = [version.location.uri for version in aspired.values()]
            self.reported.notify_all()

    def _on_pending(self, name: str, pending: Pending) -> None:
        self.pending = pending


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
    add(tmp_path, "2x")
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
        f"Model m is waiting: its base path {tmp_path / 'absent'} does not exist or is not a directory"
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
    source = Source(LocalStorage(lambda path: ""), lambda name, aspired: reports.append(name), poll_wait_s=1)
    source.watch([ModelConfig(name, str(tmp_path / name)) for name in ("bad", "good")])
    real = os.scandir

    def scandir(path: Path | str) -> object:
        if Path(path).name == "bad":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert not source.poll()
    assert not source.poll()
    assert reports == ["good", "good"]
    assert [record.message for record in caplog.records] == ["Model bad cannot be polled: [Errno 13] Permission denied"]


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


def test_a_poll_wait_of_zero_looks_once_for_each_configuration(tmp_path: Path) -> None:
    add(tmp_path, "1")
    watch = Watch(tmp_path, poll_wait_s=0)
    watch.source.start()
    with watch.reported:
        assert watch.reported.wait_for(lambda: watch.reports == [[1]], 10)
    add(tmp_path, "2")
    watch.source.watch([watch.config])
    with watch.reported:
        assert watch.reported.wait_for(lambda: watch.reports[1:] == [[2]], 10)
    watch.source.stop()
    assert watch.reports == [[1], [2]]


def test_stop_ends_a_source_that_has_not_begun_to_look(tmp_path: Path) -> None:
    add(tmp_path, "1")
    watch = Watch(tmp_path, poll_wait_s=0)
    wake = watch.source._wake
    clear = wake.clear
    stopper = threading.Thread(target=watch.source.stop)

    begun = threading.Event()

    def clear_after_stop() -> None:
        # Simulate the worst scheduling: all of `stop` happens between two steps of the source's thread.
        if not begun.is_set():
            stopper.start()
            begun.set()
            assert wake.wait(10)
        clear()

    wake.clear = clear_after_stop  # type: ignore[method-assign]
    watch.source.start()
    assert begun.wait(10)
    stopper.join(10)
    assert not stopper.is_alive()


def test_a_version_in_another_base_path_is_looked_at_anew(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "old", whole=None)
    add(tmp_path / "old", "1")
    watch.source.poll()
    watch.source.poll()
    assert watch.reports == [[1]]
    add(tmp_path / "new", "1", "half a mo")
    watch.source.watch([ModelConfig("m", str(tmp_path / "new"))])
    watch.source.poll()
    assert watch.reports == [[1]]
    watch.source.poll()
    assert watch.reports == [[1], [1]]


def test_a_source_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    Watch(tmp_path).source.stop()


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


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy.latest(2), [2, 3]),
        (VersionPolicy.all(), [1, 2, 3]),
        (VersionPolicy.specific([1, 3]), [1, 3]),
        (VersionPolicy.specific([4]), []),
    ],
)
def test_a_policy_chooses_among_the_versions(tmp_path: Path, policy: VersionPolicy, chosen: list[int]) -> None:
    watch = Watch(tmp_path, policy=policy)
    for name in ("1", "2", "3"):
        add(tmp_path, name)
    assert watch.source.poll()
    assert watch.reports == [chosen]


def test_versions_come_with_what_their_models_configuration_says_of_batching(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    for batching in (BatchingParameters(latency_objective_ms=20), None):
        watch.source.watch([ModelConfig("m", str(tmp_path), batching=batching)])
        watch.source.poll()
        assert watch.batching == [batching]


def test_a_policy_of_several_passes_over_what_is_not_whole(tmp_path: Path) -> None:
    watch = Watch(tmp_path, policy=VersionPolicy.latest(2))
    for name in ("1", "2"):
        add(tmp_path, name)
    watch.source.poll()
    watch.whole = None
    add(tmp_path, "3")
    assert not watch.source.poll()
    assert watch.source.poll()
    assert watch.reports == [[1, 2], [1, 2], [2, 3]]


def test_versions_that_a_policy_names_in_vain_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path, policy=VersionPolicy.specific([1, 5, 4]))
    add(tmp_path, "1")
    watch.source.poll()
    watch.source.poll()
    assert [record.message for record in caplog.records] == [
        f"Model m lacks versions that its policy requests: 4, 5 in {tmp_path}"
    ]


def test_of_two_folders_with_one_number_one_is_taken_and_the_other_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "01")
    watch.source.poll()
    watch.source.poll()
    assert watch.locations == [str(tmp_path / "1")]
    assert [record.message for record in caplog.records] == [
        f"Model m version 1 is loaded from {tmp_path / '1'}; the server ignores other directories of this number: 01"
    ]


def test_models_come_and_go_by_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch = Watch(tmp_path / "m")
    add(tmp_path / "m", "1")
    watch.source.poll()
    watch.source.watch([])
    watch.source.poll()
    assert watch.reports == [[1]]
    watch.source.watch([ModelConfig("m", str(tmp_path / "m"))])
    watch.source.poll()
    assert watch.reports == [[1], [1]]


def test_nothing_is_said_of_a_model_that_was_taken_away_while_it_was_looked_at(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")

    def missing(path: Path) -> str:
        source.watch([])
        return ""

    source = Source(LocalStorage(missing), watch._on_aspired, poll_wait_s=1)
    source.watch([watch.config])
    source.poll()
    assert watch.reports == []


@pytest.mark.parametrize(
    ("whole", "lacks"),
    [(False, "a file is missing"), (None, "no manifest lists its files, and they have changed since the last poll")],
)
def test_a_version_that_is_not_whole_is_told_with_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool | None, lacks: str
) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    watch.source.poll()
    assert watch.pending == Pending()
    watch.whole = whole
    add(tmp_path, "2", "mod")
    watch.source.poll()
    add(tmp_path, "2", "model")
    watch.source.poll()
    assert watch.pending == Pending(versions={2: lacks})
    # A new version without a manifest always changes at first, which is no reason to warn.
    warnings = [f"Model m version 2 is not complete yet: {lacks}"] if whole is False else []
    assert [record.message for record in caplog.records] == warnings
    watch.whole = True
    watch.source.poll()
    assert watch.pending == Pending()
    assert watch.reports[-1] == [2]


def test_a_version_that_was_whole_is_looked_into_again_when_its_files_change(tmp_path: Path) -> None:
    looked: list[str] = []

    def missing(path: Path) -> str:
        looked.append(path.name)
        return ""

    source = Source(LocalStorage(missing), lambda name, aspired: None, poll_wait_s=1)
    source.watch([ModelConfig("m", str(tmp_path))])
    add(tmp_path, "1")
    for _ in range(3):
        source.poll()
    assert looked == ["1"]
    add(tmp_path, "1", "mended")
    for _ in range(3):
        source.poll()
    assert looked == ["1", "1"]


def test_a_version_that_comes_again_is_warned_of_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path, whole=False)
    for _ in range(2):
        add(tmp_path, "1")
        watch.source.poll()
        watch.source.poll()
        shutil.rmtree(tmp_path / "1")
        watch.source.poll()
    warnings = [record.message for record in caplog.records if "not complete yet" in record.message]
    assert warnings == ["Model m version 1 is not complete yet: a file is missing"] * 2


def test_an_older_version_is_not_waited_for_once_a_newer_one_is_whole(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1")
    add(tmp_path, "2")
    watch.source.poll()
    assert watch.pending.versions.keys() == {1, 2}
    watch.source.poll()
    assert (watch.pending, watch.reports) == (Pending(), [[2]])


def test_a_model_without_a_version_is_told_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path / "m" / "1")
    watch.source.poll()
    assert watch.pending == Pending("its base path does not exist")
    (tmp_path / "m" / "1").mkdir(parents=True)
    watch.source.poll()
    assert watch.pending == Pending("its base path contains no version directory such as 1/")
    add(tmp_path / "m", "1")
    assert not watch.source.poll() or watch.reports == [[], []]
    assert watch.pending == Pending("its base path is itself a version: it contains saved_model.pb")
    assert f"--model_base_path={tmp_path / 'm'}" in caplog.text
    add(tmp_path / "m" / "1", "2")
    watch.source.poll()
    assert watch.pending == Pending()
    assert watch.reports[-1] == [2]


def test_what_a_model_waits_for_is_not_told_once_it_was_taken_away(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "absent")
    watch.source.watch([])
    watch.source.poll()
    assert watch.pending == Pending()


def test_a_refused_version_is_reported_beside_the_one_that_serves(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    add(tmp_path, "3")
    (tmp_path / "3" / "saved_model.pb").unlink()
    os.mkfifo(tmp_path / "3" / "saved_model.pb")
    (tmp_path / "4").symlink_to("4")
    assert watch.source.poll()
    assert watch.reports == [[2, 3, 4]]
    assert watch.refusals == {
        2: "",
        3: "saved_model.pb is a named pipe. A version may contain only regular files and directories",
        4: "the version directory cannot be read: Too many levels of symbolic links",
    }


def test_a_repaired_version_replaces_the_one_before(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    os.mkfifo(tmp_path / "2" / "pipe")
    watch.source.poll()
    (tmp_path / "2" / "pipe").unlink()
    watch.source.poll()
    assert watch.reports == [[1, 2], [2]]
    assert watch.refusals == {2: ""}


def test_a_pipe_in_a_served_version_changes_nothing(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    watch.source.poll()
    os.mkfifo(tmp_path / "2" / "pipe")
    watch.source.poll()
    assert watch.reports == [[2], [2]]
    assert watch.refusals == {2: ""}


def test_an_error_in_one_version_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    real = LocalStorage.fingerprint

    def fingerprint(self: LocalStorage, location: VersionLocation) -> str:
        if location.uri.endswith("/2"):
            raise OSError(5, "Input/output error", location.uri)
        return real(self, location)

    monkeypatch.setattr(LocalStorage, "fingerprint", fingerprint)
    assert not watch.source.poll()
    assert watch.reports == [[1]]
    assert watch.pending == Pending(versions={2: "its files cannot be read"})
    assert "Model m version 2 cannot be checked: [Errno 5] Input/output error" in caplog.text
    monkeypatch.undo()
    assert watch.source.poll()
    assert watch.reports == [[1], [2]]
