import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tpuserve_server.core.batching.parameters import BatchingParameters
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.models.model_config import ModelConfig, VersionPolicy
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Pending


class SteppedClock:
    """A WaitingClock that jumps to the end of each wait, up to `end_s`. From then on, a wait only ends by a wake-up."""

    def __init__(self, end_s: float = math.inf, *, at_s: float = math.inf, act: Callable[[], object] = str) -> None:
        """Call `act` once, in the first wait that ends `at_s` seconds after the start."""
        self.now_s = 1000.0
        self._at_s = self.now_s + at_s
        self._act = act
        self._end_s = self.now_s + end_s
        self.is_over = threading.Event()

    def monotonic_s(self) -> float:
        return self.now_s

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        if at_s < self._end_s:
            self.now_s = at_s
            if at_s >= self._at_s:
                self._at_s = math.inf
                self._act()
        else:
            self.is_over.set()
            condition.wait()


class Watch:
    """A source with one base path, polled by hand."""

    def __init__(
        self,
        base_path: Path,
        *,
        whole: bool | None = True,
        poll_wait_s: float = 1,
        policy: VersionPolicy | None = None,
        unix_s: Callable[[], float] = time.time,
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
        self.clock = SteppedClock()
        self.source = Source(
            storage,
            self._on_aspired,
            poll_wait_s=poll_wait_s,
            clock=self.clock,
            on_pending=self._on_pending,
            unix_s=unix_s,
        )
        self.config = ModelConfig("m", str(base_path), version_policy=policy or VersionPolicy.latest())
        self.source.watch([self.config])

    def poll(self, after_s: float = 1) -> bool:
        """Poll `after_s` seconds after the last poll."""
        self.clock.now_s += after_s
        return self.source.poll()

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
    watch.poll()
    add(tmp_path, "0000002")
    add(tmp_path, "notes")
    add(tmp_path, "-3")
    add(tmp_path, "2x")
    (tmp_path / "7").write_text("a file")
    watch.poll()
    assert watch.reports == [[1], [2]]


def test_a_missing_base_path_changes_nothing_and_an_empty_one_takes_the_model_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(tmp_path / "absent")
    assert not watch.poll()
    assert not watch.poll()
    assert [record.message for record in caplog.records] == [
        f"Model m is waiting: its base path {tmp_path / 'absent'} does not exist or is not a directory"
    ]
    assert watch.reports == []
    (tmp_path / "absent").mkdir()
    watch.poll()
    assert watch.reports == [[]]


def test_deleting_a_version_falls_back_to_the_one_before(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    newest = add(tmp_path, "2")
    watch.poll()
    (newest / "saved_model.pb").unlink()
    newest.rmdir()
    watch.poll()
    assert watch.reports == [[2], [1]]


def test_a_copy_that_is_under_way_is_left_alone_until_it_holds_still(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1", "mod")
    assert not watch.poll()
    add(tmp_path, "1", "model whole")
    assert not watch.poll()
    assert watch.reports == []
    assert watch.poll()
    assert watch.reports == [[1]]


def test_the_version_before_is_kept_while_the_next_is_copied(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    watch.poll()
    watch.whole = None
    add(tmp_path, "2")
    watch.poll()
    watch.poll()
    assert watch.reports == [[1], [1], [2]]


def test_an_unreadable_base_path_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[str] = []
    add(tmp_path / "good", "1")
    (tmp_path / "bad").mkdir()
    source = Source(
        LocalStorage(lambda path: ""), lambda name, aspired: reports.append(name), poll_wait_s=1, clock=SteppedClock()
    )
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
    watch.source.watch([replace(watch.config)])
    with watch.reported:
        assert watch.reported.wait_for(lambda: watch.reports[1:] == [[2]], 10)
    watch.source.stop()
    assert watch.reports == [[1], [2]]


def test_stop_ends_a_source_that_waits_for_nothing() -> None:
    source = Source(LocalStorage(lambda path: ""), lambda name, aspired: None, poll_wait_s=0, clock=SystemClock())
    source.start()
    source.stop()


def test_a_version_in_another_base_path_is_looked_at_anew(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "old", whole=None)
    add(tmp_path / "old", "1")
    watch.poll()
    watch.poll()
    assert watch.reports == [[1]]
    add(tmp_path / "new", "1", "half a mo")
    watch.source.watch([ModelConfig("m", str(tmp_path / "new"))])
    watch.poll()
    assert watch.reports == [[1]]
    watch.poll()
    assert watch.reports == [[1], [1]]


def test_a_source_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    Watch(tmp_path).source.stop()


def test_a_version_that_its_manifest_calls_incomplete_gets_time_and_then_its_say(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=False)
    add(tmp_path, "1")
    assert not watch.poll()
    assert not watch.poll(after_s=29.9)
    assert watch.reports == []
    assert watch.poll(after_s=0.1)
    assert watch.reports == [[1]]


def test_a_version_that_comes_again_is_looked_at_anew(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    shutil.rmtree(add(tmp_path, "3"))
    add(tmp_path, "3")
    add(tmp_path, "2")
    watch.poll()
    shutil.rmtree(tmp_path / "3")
    watch.poll()
    watch.whole = None
    add(tmp_path, "3", "half")
    watch.poll()
    assert watch.reports == [[3], [2], [2]]


def test_an_unreadable_version_does_not_hide_the_others(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "saved_model.pb").symlink_to(tmp_path / "nowhere")
    watch.poll()
    watch.poll()
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
    assert watch.poll()
    assert watch.reports == [chosen]


def test_versions_come_with_what_their_models_configuration_says_of_batching(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    for batching in (BatchingParameters(latency_objective_ms=20), None):
        watch.source.watch([ModelConfig("m", str(tmp_path), batching=batching)])
        watch.poll()
        assert watch.batching == [batching]


def test_a_policy_of_several_passes_over_what_is_not_whole(tmp_path: Path) -> None:
    watch = Watch(tmp_path, policy=VersionPolicy.latest(2))
    for name in ("1", "2"):
        add(tmp_path, name)
    watch.poll()
    watch.whole = None
    add(tmp_path, "3")
    assert not watch.poll()
    assert watch.poll()
    assert watch.reports == [[1, 2], [1, 2], [2, 3]]


def test_versions_that_a_policy_names_in_vain_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path, policy=VersionPolicy.specific([1, 5, 4]))
    add(tmp_path, "1")
    watch.poll()
    watch.poll()
    assert [record.message for record in caplog.records] == [
        f"Model m lacks versions that its policy requests: 4, 5 in {tmp_path}"
    ]


def test_of_two_folders_with_one_number_one_is_taken_and_the_other_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "01")
    watch.poll()
    watch.poll()
    assert watch.locations == [str(tmp_path / "1")]
    assert [record.message for record in caplog.records] == [
        f"Model m version 1 is loaded from {tmp_path / '1'}; the server ignores other directories of this number: 01"
    ]


def test_models_come_and_go_by_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch = Watch(tmp_path / "m")
    add(tmp_path / "m", "1")
    watch.poll()
    watch.source.watch([])
    watch.poll()
    assert watch.reports == [[1]]
    watch.source.watch([ModelConfig("m", str(tmp_path / "m"))])
    watch.poll()
    assert watch.reports == [[1], [1]]


def test_nothing_is_said_of_a_model_that_was_taken_away_while_it_was_looked_at(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")

    def missing(path: Path) -> str:
        source.watch([])
        return ""

    source = Source(LocalStorage(missing), watch._on_aspired, poll_wait_s=1, clock=SteppedClock())
    source.watch([watch.config])
    source.poll()
    assert watch.reports == []


@pytest.mark.parametrize(
    ("whole", "lacks"),
    [(False, "a file is missing"), (None, "no manifest lists its files, so they must stay unchanged for 1 s")],
)
def test_a_version_that_is_not_whole_is_told_with_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool | None, lacks: str
) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    watch.poll()
    assert watch.pending == Pending()
    watch.whole = whole
    add(tmp_path, "2", "mod")
    watch.poll()
    add(tmp_path, "2", "model")
    watch.poll()
    assert watch.pending == Pending(versions={2: lacks})
    # A new version without a manifest always changes at first, which is no reason to warn.
    warnings = [f"Model m version 2 is not complete yet: {lacks}"] if whole is False else []
    assert [record.message for record in caplog.records] == warnings
    watch.whole = True
    watch.poll()
    assert watch.pending == Pending()
    assert watch.reports[-1] == [2]


def test_a_version_that_was_whole_is_looked_into_again_when_its_files_change(tmp_path: Path) -> None:
    looked: list[str] = []

    def missing(path: Path) -> str:
        looked.append(path.name)
        return ""

    source = Source(LocalStorage(missing), lambda name, aspired: None, poll_wait_s=1, clock=SteppedClock())
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
        watch.poll()
        watch.poll()
        shutil.rmtree(tmp_path / "1")
        watch.poll()
    warnings = [record.message for record in caplog.records if "not complete yet" in record.message]
    assert warnings == ["Model m version 1 is not complete yet: a file is missing"] * 2


def test_an_older_version_is_not_waited_for_once_a_newer_one_is_whole(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1")
    add(tmp_path, "2")
    watch.poll()
    assert watch.pending.versions.keys() == {1, 2}
    watch.poll()
    assert (watch.pending, watch.reports) == (Pending(), [[2]])


def test_a_model_without_a_version_is_told_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(tmp_path / "m" / "1")
    watch.poll()
    assert watch.pending == Pending("its base path does not exist")
    (tmp_path / "m" / "1").mkdir(parents=True)
    watch.poll()
    assert watch.pending == Pending("its base path contains no version directory such as 1/")
    add(tmp_path / "m", "1")
    assert not watch.poll() or watch.reports == [[], []]
    assert watch.pending == Pending("its base path is itself a version: it contains saved_model.pb")
    assert f"--model_base_path={tmp_path / 'm'}" in caplog.text
    add(tmp_path / "m" / "1", "2")
    watch.poll()
    assert watch.pending == Pending()
    assert watch.reports[-1] == [2]


def test_what_a_model_waits_for_is_not_told_once_it_was_taken_away(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "absent")
    watch.source.watch([])
    watch.poll()
    assert watch.pending == Pending()


def test_a_refused_version_is_reported_beside_the_one_that_serves(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    add(tmp_path, "3")
    (tmp_path / "3" / "saved_model.pb").unlink()
    os.mkfifo(tmp_path / "3" / "saved_model.pb")
    (tmp_path / "4").symlink_to("4")
    assert watch.poll()
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
    watch.poll()
    (tmp_path / "2" / "pipe").unlink()
    watch.poll()
    assert watch.reports == [[1, 2], [2]]
    assert watch.refusals == {2: ""}


def test_a_pipe_in_a_served_version_changes_nothing(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    add(tmp_path, "1")
    add(tmp_path, "2")
    watch.poll()
    os.mkfifo(tmp_path / "2" / "pipe")
    watch.poll()
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
    assert not watch.poll()
    assert watch.reports == [[1]]
    assert watch.pending == Pending(versions={2: "its files cannot be read"})
    assert "Model m version 2 cannot be checked: [Errno 5] Input/output error" in caplog.text
    monkeypatch.undo()
    assert watch.poll()
    assert watch.reports == [[1], [2]]


def test_stillness_is_a_matter_of_seconds_and_not_of_polls(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None)
    add(tmp_path, "1")
    for _ in range(5):
        assert not watch.poll(after_s=0.2)
    assert watch.poll(after_s=0.2)
    assert watch.reports == [[1]]


def test_a_version_whose_files_are_old_is_complete_at_the_first_look(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=None, unix_s=lambda: time.time() + 61)
    path = add(tmp_path, "1")
    assert watch.poll()
    assert watch.reports == [[1]]
    # A copy that keeps the times of its source is recognized by the times of the inodes.
    watch = Watch(tmp_path, whole=None)
    os.utime(path / "saved_model.pb", (0, 0))
    os.utime(path, (0, 0))
    assert not watch.poll()


def test_an_old_version_that_lacks_a_file_gets_time(tmp_path: Path) -> None:
    watch = Watch(tmp_path, whole=False, unix_s=lambda: time.time() + 61)
    add(tmp_path, "1")
    assert not watch.poll()
    assert watch.poll(after_s=30)


class CountingStorage(LocalStorage):
    """Base paths of any scheme in a directory. Notes the time of each listing, which takes `took_s`."""

    def __init__(self, root: Path, clock: SteppedClock, *, whole: bool | None = True, took_s: float = 0.0) -> None:
        super().__init__(lambda path: {True: "", None: None, False: "a file is missing"}[whole])
        self._root = root
        self._clock = clock
        self._took_s = took_s
        self._lock = threading.Lock()
        self.listed_s: list[float] = []
        self.error: OSError | None = None

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        with self._lock:
            self.listed_s.append(self._clock.now_s - 1000)
            self._clock.now_s += self._took_s
        if self.error is not None:
            raise self.error
        return super().find_versions(str(self._root / base_path.rpartition("/")[2]))


def listing_times(
    root: Path,
    base_path: str,
    *,
    poll_wait_s: float,
    end_s: float,
    whole: bool | None = True,
    took_s: float = 0.0,
    error: OSError | None = None,
    at_s: float = math.inf,
    act: Callable[[], object] = str,
) -> list[float]:
    """Run a source with one model until `end_s`, and return the times of its listings, in whole seconds."""
    clock = SteppedClock(end_s, at_s=at_s, act=act)
    storage = CountingStorage(root, clock, whole=whole, took_s=took_s)
    storage.error = error
    source = Source(storage, lambda name, aspired: None, poll_wait_s=poll_wait_s, clock=clock)
    source.watch([ModelConfig("m", base_path)])
    source.start()
    assert clock.is_over.wait(10)
    source.stop()
    return [round(at_s) for at_s in storage.listed_s]


def test_looks_at_an_incomplete_version_follow_a_clock_of_their_own(tmp_path: Path) -> None:
    add(tmp_path / "m", "1")
    assert listing_times(tmp_path, "/m", whole=None, poll_wait_s=3600, end_s=4000) == [0, 1, 3601]
    assert listing_times(tmp_path, "s3://b/m", whole=None, poll_wait_s=3600, end_s=4000) == [0, 1, 3601]
    assert listing_times(tmp_path, "/m", whole=False, poll_wait_s=3600, end_s=4000) == [*range(31), 3630]
    assert listing_times(tmp_path, "/m", whole=None, poll_wait_s=0, end_s=10_000) == [0, 1]


def test_an_absent_base_path_is_looked_for_less_and_less_often(tmp_path: Path) -> None:
    doubling = [0, 1, 3, 7, 15, 31, 63]
    assert listing_times(tmp_path, "/m", poll_wait_s=3600, end_s=100) == doubling
    assert listing_times(tmp_path, "s3://b/m", poll_wait_s=0, end_s=200) == [*doubling, 123, 183]
    assert listing_times(tmp_path, "s3://b/m", poll_wait_s=1, end_s=4) == [0, 1, 2, 3]
    assert listing_times(tmp_path, "/m", poll_wait_s=0, end_s=4) == [0, 1, 2, 3]


def test_a_store_that_fails_is_listed_less_and_less_often(tmp_path: Path) -> None:
    refused = OSError("SlowDown")
    listed = listing_times(tmp_path, "s3://b/m", poll_wait_s=1, end_s=200, error=refused)
    assert listed == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert listing_times(tmp_path, "/m", poll_wait_s=1, end_s=4, error=refused) == [0, 1, 2, 3]


def test_a_slow_store_is_listed_for_a_tenth_of_the_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    add(tmp_path / "m", "1")
    assert listing_times(tmp_path, "s3://b/m", poll_wait_s=1, end_s=60, took_s=2) == [0, 22, 44]
    assert caplog.text.count("Listing 1 base paths is slow: the next listing follows after 20.0 s") == 1
    assert listing_times(tmp_path, "s3://b/m", poll_wait_s=1, end_s=130, took_s=30) == [0, 90]
    assert listing_times(tmp_path, "/m", poll_wait_s=1, end_s=8, took_s=1) == [0, 2, 4, 6]


def test_base_paths_in_stores_are_listed_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(8, timeout=10)

    class Together(LocalStorage):
        def find_versions(self, base_path: str) -> None:
            together.wait()

    source = Source(Together(lambda path: ""), lambda name, aspired: None, poll_wait_s=1, clock=SteppedClock())
    source.watch([ModelConfig(f"m{index}", f"s3://b/m{index}") for index in range(8)])
    assert not source.poll()
    assert not together.broken
    source.stop()


def test_a_configuration_that_stays_the_same_causes_no_listing(tmp_path: Path) -> None:
    clock = SteppedClock()
    storage = CountingStorage(tmp_path, clock)
    add(tmp_path / "m", "1")
    reported = threading.Semaphore(0)
    source = Source(storage, lambda name, aspired: reported.release(), poll_wait_s=0, clock=clock)
    known, other = ModelConfig("m", "s3://b/m"), ModelConfig("n", "s3://b/m")
    source.watch([known])
    source.start()
    assert reported.acquire(timeout=10)
    source.watch([known, other])
    assert reported.acquire(timeout=10)
    source.watch([other])
    source.watch([known, other])
    assert reported.acquire(timeout=10)
    source.stop()
    assert len(storage.listed_s) == 3


def test_files_in_directories_are_looked_at_for_a_small_part_of_the_time(tmp_path: Path) -> None:
    add(tmp_path / "m", "1")
    base = str(tmp_path / "m")
    assert listing_times(tmp_path, base, poll_wait_s=1, end_s=3, took_s=0.001) == [0, 1, 2]
    assert listing_times(tmp_path, base, poll_wait_s=1, end_s=20, took_s=0.025) == [0, 5, 10, 15]
    assert listing_times(tmp_path, f"file://{base}", poll_wait_s=1, end_s=70, took_s=1) == [0, 31, 62]
    # A new entry is seen at the next poll.
    listed = listing_times(
        tmp_path, base, poll_wait_s=1, end_s=12, took_s=0.1, at_s=4, act=lambda: add(tmp_path / "m", "2")
    )
    assert listed == [0, 4]
    listed = listing_times(tmp_path, base, poll_wait_s=1, end_s=12, took_s=0.1, at_s=4, act=lambda: shutil.rmtree(base))
    assert listed[:2] == [0, 4]
