import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.startup.config_files import ConfigError
from tpuserve_server.startup.model_config_file import ModelConfigFile


def models(*names: str) -> str:
    each = (f'config {{ name: "{name}" base_path: "/{name}" model_platform: "tensorflow" }}' for name in names)
    return f"model_config_list {{ {' '.join(each)} }}"


class Applied:
    """Records the applied models by name. Fails while it has a refusal."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self.hashes: list[str] = []
        self.refusal: str | None = None

    def __call__(self, configs: tuple[ModelConfig, ...], sha256: str) -> None:
        if self.refusal:
            raise FailedPrecondition(self.refusal)
        self.names.append([config.name for config in configs])
        self.hashes.append(sha256)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "models.config"
    file.write_text(models("a"))
    return file


@pytest.fixture
def applied() -> Applied:
    return Applied()


class Poller:
    """A ModelConfigFile after its first read. `poll` checks it once."""

    def __init__(self, file: Path, applied: Applied) -> None:
        self._file = ModelConfigFile(file, poll_wait_s=0)
        self._applied = applied
        assert [config.name for config in self._file.read()] == ["a"]

    def poll(self) -> None:
        self._file.poll(self._applied)


@pytest.fixture
def poller(file: Path, applied: Applied) -> Poller:
    return Poller(file, applied)


@pytest.fixture
def complaints(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_change_is_applied_once(poller: Poller, file: Path, applied: Applied) -> None:
    poller.poll()
    assert applied.names == []
    file.write_text(models("a", "b"))
    poller.poll()
    poller.poll()
    assert applied.names == [["a", "b"]]
    file.write_text(f"# Only a comment is new.\n{models('b', 'a')}")
    poller.poll()
    assert applied.hashes == [applied.hashes[0]] * 2


def test_a_change_within_one_tick_of_the_clock_is_seen(poller: Poller, file: Path, applied: Applied) -> None:
    before = file.stat()
    file.write_text(models("b"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    poller.poll()
    assert applied.names == [["b"]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model_config_list {", "Error parsing text-format tensorflow.serving.ModelServerConfig: 1:19: "),
        ("", "It is only legal to transition from one ModelConfigList to another."),
        ("custom_model_config {}", "Only ModelConfigList is currently supported"),
    ],
)
def test_a_bad_file_changes_nothing_and_is_logged_once(
    poller: Poller, file: Path, applied: Applied, complaints: Callable[[], list[str]], text: str, reason: str
) -> None:
    file.write_text(text)
    poller.poll()
    poller.poll()
    [line] = complaints()
    assert reason in line
    assert str(file) in line
    assert applied.names == []
    file.write_text(models("b"))
    poller.poll()
    assert applied.names == [["b"]]


def test_a_file_that_goes_away_changes_nothing(
    poller: Poller, file: Path, applied: Applied, complaints: Callable[[], list[str]]
) -> None:
    text = file.read_text()
    file.unlink()
    poller.poll()
    file.write_text(text)
    poller.poll()
    assert applied.names == []
    assert len(complaints()) == 1


def test_what_is_refused_is_tried_again_and_logged_for_each_reason(
    poller: Poller, file: Path, applied: Applied, complaints: Callable[[], list[str]]
) -> None:
    file.write_text(models("b"))
    for applied.refusal in ("not yet", "not yet", "still not", None):
        poller.poll()
    assert [line.rpartition(": ")[2] for line in complaints()] == ["not yet", "still not"]
    assert applied.names == [["b"]]


def test_the_thread_looks_by_itself_and_survives_a_defect(file: Path) -> None:
    calls: list[str] = []
    done = threading.Event()

    def apply(configs: tuple[ModelConfig, ...], sha256: str) -> None:
        calls.append(configs[0].name)
        if len(calls) == 1:
            raise ZeroDivisionError
        done.set()

    watched = ModelConfigFile(file, poll_wait_s=0.001)
    watched.read()
    file.write_text(models("b"))
    watched.watch(apply)
    try:
        assert done.wait(10)
    finally:
        watched.stop_watching()
    assert calls == ["b", "b"]
    assert "model-config-file" not in {thread.name for thread in threading.enumerate()}


def test_with_zero_seconds_only_a_request_polls_the_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    applied: queue.Queue[str] = queue.Queue()
    asked = ModelConfigFile(file, poll_wait_s=0)
    asked.read()
    asked.watch(lambda configs, sha256: applied.put(configs[0].name))
    try:
        for name in ("b", "c"):
            file.write_text(models(name))
            asked.poll_soon()
            assert applied.get(timeout=10) == name
    finally:
        asked.stop_watching()
    assert "model-config-file" not in {thread.name for thread in threading.enumerate()}


def test_request_logs_its_outcome_in_any_case(file: Path, applied: Applied, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    asked = ModelConfigFile(file, poll_wait_s=0)
    asked.read()
    asked.poll_soon()
    asked.poll(applied)
    assert "has not changed" in caplog.text
    file.write_text("model_config_list {")
    for _ in range(2):
        asked.poll_soon()
        asked.poll(applied)
    assert caplog.text.count("refused") == 2


def test_at_the_start_a_bad_file_is_an_error(file: Path) -> None:
    file.write_text("model_config_list {")
    with pytest.raises(ConfigError):
        ModelConfigFile(file, poll_wait_s=0).read()


def test_a_file_in_a_store_is_polled(applied: Applied, complaints: Callable[[], list[str]]) -> None:
    files, uri = fsspec.filesystem("memory"), "memory://polled/models.config"
    files.pipe_file("/polled/models.config", models("a").encode())
    polled = ModelConfigFile(uri, poll_wait_s=0)
    assert [config.name for config in polled.read()] == ["a"]
    files.pipe_file("/polled/models.config", models("b").encode())
    polled.poll(applied)
    files.rm("/polled/models.config")
    polled.poll(applied)
    assert applied.names == [["b"]]
    assert [line.rpartition("configuration: ")[2] for line in complaints()] == [
        f"Cannot read '{uri}': No such file or directory"
    ]
