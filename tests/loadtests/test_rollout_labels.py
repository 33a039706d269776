"""Tests for the labels in the file and on a scripted server that stops, restarts or refuses."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpuserve_client.errors import FailedPrecondition, TpuserveError, Unavailable
from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_loadtests.rollout import labels as labels_module
from tpuserve_loadtests.rollout.labels import Apply, Labels
from tpuserve_loadtests.rollout.moves import NotMoved, ServerGone
from tpuserve_loadtests.rollout.replicas import Place, Replicas
from tpuserve_loadtests.rollout.sources import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

LIVE, NEW = 3, 4
CONFIG = """\
# Written by a person.
model_config_list {
  config {
    name: "m" base_path: "/m"
    version_labels { key: "stable" value: 3 }
  }
}
"""


class Server:
    """A server with labels. `failures` are the errors of its next calls. An error of None stands for a response."""

    def __init__(self) -> None:
        self.labels: dict[str, int] = {"stable": LIVE}
        self.failures: list[TpuserveError | None] = []
        self.before_reload: Callable[[], None] = lambda: None

    def reload(self, config: "Message") -> None:
        self.before_reload()
        self._fail()
        assert isinstance(config, ModelServerConfig)
        self.labels = dict(config.model_config_list.config[0].version_labels)

    def labelled(self, model: str, label: str) -> int | None:
        self._fail()
        return self.labels.get(label)

    def configuration_sha256(self, model: str) -> str:
        return ""

    def available(self, model: str) -> tuple[int, ...]:
        return (LIVE, NEW)

    def _fail(self) -> None:
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_module, "_LOOK_S", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.config"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def server() -> Server:
    return Server()


def replicas(*servers: Server) -> Replicas:
    by_address = {f"s{number}:8500": server for number, server in enumerate(servers)}
    return Replicas([Place(address) for address in by_address], lambda at: by_address[at])  # type: ignore[arg-type,return-value]  # scripted


def promoted(file: Path, server: Server, apply: Apply = "reload", patience_s: float = 30.0) -> tuple[Labels, list[str]]:
    """Return labels at the new version, and the messages about waiting."""
    said: list[str] = []
    labels = Labels(ConfigFile(file), "m", replicas(server), apply, patience_s, said.append)
    labels.move({"canary": NEW})
    labels.move({"stable": NEW})
    assert server.labels == {"stable": NEW, "canary": NEW}
    return labels, said


BACK = {"canary": None, "stable": LIVE}


def test_the_old_labels_are_in_the_file_before_the_server_receives_them(file: Path, server: Server) -> None:
    labels, said = promoted(file, server)
    seen: list[str] = []
    server.before_reload = lambda: seen.append(file.read_text())
    labels.restore(BACK)
    assert seen == [CONFIG]
    assert server.labels == {"stable": LIVE}
    assert said == []


def test_a_server_that_is_gone_leaves_the_old_labels_in_the_file(file: Path, server: Server) -> None:
    labels, _ = promoted(file, server, patience_s=0.0)
    server.failures = [Unavailable("connection refused")] * 100
    with pytest.raises(ServerGone) as gone:
        labels.restore(BACK)
    assert file.read_text() == CONFIG
    assert str(gone.value) == (
        f"the server does not respond: connection refused. {file} has stable: version 3; "
        "a server that starts with this file serves these versions"
    )


def test_a_server_that_restarts_is_waited_for(file: Path, server: Server) -> None:
    labels, said = promoted(file, server)
    loading = FailedPrecondition("version 3 is not available")
    server.failures = [*[Unavailable("connection refused")] * 6, loading, None, None]
    labels.restore(BACK)
    assert server.labels == {"stable": LIVE}
    (words,) = said
    assert words.endswith("Waiting for the server, at most 30 s.")


def test_a_refusal_of_a_server_that_runs_is_final_and_the_file_keeps_the_old_labels(file: Path, server: Server) -> None:
    labels, _ = promoted(file, server)
    server.failures = [None, None, FailedPrecondition("no")]  # the labels are read first
    with pytest.raises(NotMoved, match=r"refused the reload: no\. label canary: none in the file, version 4"):
        labels.restore(BACK)
    assert file.read_text() == CONFIG


def test_a_change_of_another_process_stays_when_the_labels_move_back(file: Path, server: Server) -> None:
    labels, _ = promoted(file, server)
    file.write_text(file.read_text() + "# theirs\n")
    labels.restore(BACK)
    assert file.read_text() == CONFIG + "# theirs\n"


def test_a_file_that_cannot_be_written_is_reported_and_the_server_still_moves_back(file: Path, server: Server) -> None:
    labels, _ = promoted(file, server)
    file.write_text("not a configuration")
    with pytest.raises(NotMoved, match=r"the labels cannot be written to .*models.config: not a ModelServerConfig"):
        labels.restore(BACK)
    assert server.labels == {"stable": LIVE}


def test_a_move_to_a_server_that_is_gone_leaves_the_file_as_it_was(file: Path, server: Server) -> None:
    labels = Labels(ConfigFile(file), "m", replicas(server), "reload", 5)
    server.failures = [Unavailable("connection refused")] * 100
    with pytest.raises(NotMoved, match="connection refused"):
        labels.move({"canary": NEW})
    assert file.read_text() == CONFIG
    assert list(file.parent.iterdir()) == [file]
