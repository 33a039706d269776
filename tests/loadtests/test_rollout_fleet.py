"""Tests for the addresses of replicas, and for labels over scripted replicas that lag, die and return."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import Message

from tpuserve_client.errors import FailedPrecondition, TpuserveError, Unavailable
from tpuserve_formats.messages.model_server_config import configuration_sha256
from tpuserve_loadtests.rollout import labels as labels_module
from tpuserve_loadtests.rollout.labels import Apply, Labels
from tpuserve_loadtests.rollout.model_config_text import ModelConfigText
from tpuserve_loadtests.rollout.moves import NotMoved, ServerGone
from tpuserve_loadtests.rollout.programs import Conflict
from tpuserve_loadtests.rollout.replicas import Goal, Place, Replicas
from tpuserve_loadtests.rollout.sources import ConfigFile

if TYPE_CHECKING:
    from collections.abc import Callable

LIVE, NEW = 3, 4
CONFIG = """\
model_config_list { config { name: "m" base_path: "/m" version_labels { key: "stable" value: 3 } } }
"""
BACK = {"canary": None, "stable": LIVE}


class Server:
    """A server with a configuration. `error` is that of every call. `on_reload` runs before a reload takes effect."""

    def __init__(self, text: str = CONFIG) -> None:
        self.error: TpuserveError | None = None
        self.on_reload: Callable[[], None] = lambda: None
        self.reloads = 0
        self.reports_hash = True
        self.apply(ModelConfigText(text).message)

    def apply(self, config: Message) -> None:
        self.sha256 = configuration_sha256(config)
        [model] = config.model_config_list.config  # type: ignore[attr-defined]  # a ModelServerConfig
        self.labels = dict(model.version_labels)

    def reload(self, config: Message) -> None:
        self._fail()
        self.reloads += 1
        self.on_reload()
        self._fail()
        self.apply(config)

    def labelled(self, model: str, label: str) -> int | None:
        self._fail()
        return self.labels.get(label)

    def configuration_sha256(self, model: str) -> str:
        self._fail()
        return self.sha256 if self.reports_hash else ""

    def available(self, model: str) -> tuple[int, ...]:
        self._fail()
        return (LIVE, NEW)

    def __exit__(self) -> None:
        self.error = Unavailable("the connection is closed")

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_module, "_LOOK_S", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "models.config"
    path.write_text(CONFIG)
    return path


def replicas_of(*servers: Server, allow_missing: int = 0) -> Replicas:
    by_address = {f"s{number}:8500": server for number, server in enumerate(servers)}
    places = [Place(address) for address in by_address]
    return Replicas(places, lambda at: by_address[at], allow_missing)  # type: ignore[arg-type,return-value]  # scripted


def labels_of(file: Path, replicas: Replicas, apply: Apply = "reload", patience_s: float = 0.0) -> Labels:
    return Labels(ConfigFile(file), "m", replicas, apply, patience_s)


# Addresses.


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1:8500", Place("10.0.0.1:8500")),
        ("grpcs://a.example:8500", Place("grpcs://a.example:8500")),
        ("dns:a.example:8500", Place("a.example:8500", is_dns=True)),
        ("dns:grpcs://a.example:8500", Place("grpcs://a.example:8500", is_dns=True)),
        ("dns:http://a.example:8501", Place("http://a.example:8501", is_dns=True)),
    ],
)
def test_an_address_is_parsed(text: str, place: Place) -> None:
    assert Place.parse(text) == place
    assert place.name in ("10.0.0.1", "a.example")


@pytest.mark.parametrize("text", ["dns:", "dns:a", "dns:a:b", "dns::8500"])
def test_a_dns_name_needs_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="expected dns:NAME:PORT"):
        Place.parse(text)


class Dns:
    """A name with addresses that change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
        self.hosts = hosts
        monkeypatch.setattr(socket, "getaddrinfo", self._find)

    def _find(self, name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert (name, port) == ("fleet.example", 8500)
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        return [(0, 0, 0, "", (host, port)) for host in (*self.hosts, self.hosts[0])]


def test_every_address_of_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    Dns(monkeypatch, "10.0.0.2", "10.0.0.1", "fd00::1")
    expected = ["10.0.0.1:8500", "10.0.0.2:8500", "[fd00::1]:8500"]
    assert Place.parse("dns:fleet.example:8500").addresses() == expected
    secure = Place.parse("dns:grpcs://fleet.example:8500").addresses()
    assert secure == [f"grpcs://{address}" for address in expected]


def test_a_pod_that_appears_counts_and_one_that_the_name_drops_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = Dns(monkeypatch, "10.0.0.1", "10.0.0.2")
    servers = {f"10.0.0.{number}:8500": Server() for number in (1, 2, 3)}
    replicas = Replicas([Place("fleet.example:8500", is_dns=True)], lambda at: servers[at])  # type: ignore[arg-type,return-value]  # scripted
    goal = Goal("m", ModelConfigText(CONFIG).sha256, {"stable": LIVE})
    assert replicas.look(goal).agrees
    servers["10.0.0.2:8500"].error = Unavailable("connection refused")
    assert replicas.look(goal).lacking == "10.0.0.2:8500 does not respond: connection refused"
    servers["10.0.0.3:8500"].apply(ModelConfigText(CONFIG.replace("value: 3", "value: 9")).message)
    dns.hosts = ("10.0.0.1", "10.0.0.3")
    look = replicas.look(goal)
    assert [state.address for state in look.states] == ["10.0.0.1:8500", "10.0.0.3:8500"]
    assert "10.0.0.3:8500 has the configuration " in look.lacking
    assert look.lacking.endswith("and has label stable at version 9, not version 3")
    dns.hosts = ("10.0.0.1",)
    assert replicas.look(goal).agrees
    dns.hosts = ()
    assert (replicas.look(goal).agrees, replicas.look(goal).lacking) == (False, "has no address")


def test_a_name_without_an_address_is_a_missing_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two names cannot be resolved: its replicas may not follow."""
    dns = Dns(monkeypatch, "10.0.0.1")
    places = [Place("10.0.0.9:8500"), Place("fleet.example:8500", is_dns=True)]
    servers = {"10.0.0.1:8500": Server(), "10.0.0.9:8500": Server()}
    replicas = Replicas(places, lambda at: servers[at])  # type: ignore[arg-type,return-value]  # scripted
    goal = Goal("m", ModelConfigText(CONFIG).sha256, {"stable": LIVE})
    assert replicas.look(goal).agrees
    dns.hosts = ()
    look = replicas.look(goal)
    assert (look.agrees, look.is_gone, look.lacking) == (False, True, "fleet.example has no address")
    with pytest.raises(Unavailable, match=r"fleet\.example: the name has no address"):
        replicas.responding("m")


# Labels.


def test_the_hash_decides_even_if_the_label_agrees(file: Path) -> None:
    """The other replica has the label, and another base path."""
    first, second = Server(), Server(CONFIG.replace('base_path: "/m"', 'base_path: "/other"'))
    with pytest.raises(ValueError, match="the file differs from the server: s1:8500 has the configuration"):
        labels_of(file, replicas_of(first, second)).check()


def test_a_server_without_a_hash_is_judged_by_its_labels(file: Path) -> None:
    first, second = Server(), Server()
    second.reports_hash = False
    labels = labels_of(file, replicas_of(first, second))
    labels.check()
    labels.move({"stable": NEW})
    assert (first.labels, second.labels) == ({"stable": NEW}, {"stable": NEW})


def test_a_replica_that_dies_during_the_reversal_does_not_keep_the_others_from_it(file: Path) -> None:
    servers = [Server(), Server(), Server()]
    labels = labels_of(file, replicas_of(*servers), patience_s=0.05)
    labels.move({"canary": NEW})
    labels.move({"stable": NEW})
    assert all(server.labels == {"stable": NEW, "canary": NEW} for server in servers)
    # It dies while the first one reloads.
    servers[0].on_reload = lambda: setattr(servers[1], "error", Unavailable("connection refused"))
    with pytest.raises(ServerGone) as gone:
        labels.restore(BACK)
    assert str(gone.value).startswith("s1:8500 does not respond: connection refused. ")
    assert "has stable: version 3; a server that starts with this file serves these versions" in str(gone.value)
    assert (servers[0].labels, servers[2].labels) == ({"stable": LIVE}, {"stable": LIVE})
    assert file.read_text() == CONFIG


def test_only_replicas_that_lack_the_labels_get_the_file_again(file: Path) -> None:
    servers = [Server(), Server()]
    said: list[str] = []
    labels = Labels(ConfigFile(file), "m", replicas_of(*servers), "reload", 30.0, said.append)
    labels.move({"stable": NEW})
    before = servers[0].reloads
    servers[1].error = Unavailable("connection refused")
    attempts = iter(range(20))

    def come_back() -> str:
        if next(attempts) == 10:
            servers[1].error = None
        return ""

    original = servers[0].configuration_sha256
    servers[0].configuration_sha256 = lambda model: come_back() or original(model)  # type: ignore[method-assign]
    labels.restore({"stable": LIVE})
    assert [server.labels for server in servers] == [{"stable": LIVE}] * 2
    assert servers[0].reloads == before + 1
    assert said[0] == "Waiting for 1 of 2 replicas, at most 30 s: s1:8500 does not respond: connection refused"
    assert len(said) == 2
    assert "s1:8500 has the configuration" in said[1]


def test_a_replica_that_refuses_names_itself_and_the_others_move_back(file: Path) -> None:
    servers = [Server(), Server()]

    def refuse() -> None:
        raise FailedPrecondition("version 4 is not available")

    servers[1].on_reload = refuse
    labels = labels_of(file, replicas_of(*servers))
    with pytest.raises(NotMoved, match=r"s1:8500: the server refused the reload: version 4 is not available") as error:
        labels.move({"stable": NEW})
    assert "version 4 (s0:8500), version 3 (s1:8500) on the server" in str(error.value)
    assert file.read_text() == CONFIG
    labels.restore({"stable": LIVE})
    assert [server.labels for server in servers] == [{"stable": LIVE}] * 2


def test_a_replica_that_may_be_missing_is_left_out(file: Path) -> None:
    servers = [Server(), Server()]
    servers[1].error = Unavailable("connection refused")
    with pytest.raises(Unavailable, match="s1:8500: connection refused"):
        labels_of(file, replicas_of(*servers)).check()
    labels = labels_of(file, replicas_of(*servers, allow_missing=1))
    labels.check()
    labels.move({"stable": NEW})
    assert servers[0].labels == {"stable": NEW}
    servers[0].error = Unavailable("connection refused")
    assert not labels.look({"stable": NEW}).agrees


class Contested(ConfigFile):
    """A source that another process changes before the first writes."""

    def __init__(self, path: Path, conflicts: int) -> None:
        super().__init__(path)
        self.conflicts = conflicts

    def write(self, config: ModelConfigText, reason: str) -> None:
        if self.conflicts:
            self.conflicts -= 1
            self._path.write_text(self._path.read_text() + "# theirs\n")
            raise Conflict("the object has been modified")
        super().write(config, reason)


def test_the_reversal_reads_a_contested_source_again(file: Path) -> None:
    server = Server()
    source = Contested(file, 0)
    labels = Labels(source, "m", replicas_of(server), "reload", 0.0)
    labels.move({"stable": NEW})
    source.conflicts = 3
    labels.restore({"stable": LIVE})
    assert file.read_text() == CONFIG + "# theirs\n" * 3
    assert server.labels == {"stable": LIVE}
    source.conflicts = 99
    server.apply(ModelConfigText(CONFIG.replace("value: 3", "value: 4")).message)
    file.write_text(CONFIG.replace("value: 3", "value: 4"))
    with pytest.raises(NotMoved, match=r"the labels cannot be written to .*: the object has been modified"):
        labels.restore({"stable": LIVE})
