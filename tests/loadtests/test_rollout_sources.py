"""Tests for the sources of a configuration: a checkout, and a ConfigMap through kubectl."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.deploy.kustomize import KUBECTL
from tests.support.git import git
from tests.support.kubernetes_api import READER, ConfigMapServer, serving
from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText
from tpuserve_loadtests.rollout.programs import Conflict, KubernetesObject, run_git
from tpuserve_loadtests.rollout.sources import CommittedFile, ConfigMapKey

CONFIG = """\
# Written by a person.
model_config_list { config { name: "m" base_path: "/m" version_labels { key: "stable" value: 3 } } }
"""
CHANGED = CONFIG.replace("value: 3", "value: 4")
KEY = "models.config"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a clone of a repository with the file, as a CI job has it."""
    first = tmp_path / "first"
    (first / "deploy").mkdir(parents=True)
    git(first, "init", "--quiet", "--initial-branch", "main")
    (first / "deploy" / KEY).write_text(CONFIG)
    (first / "other").write_text("1")
    git(first, "add", ".")
    git(first, "commit", "--quiet", "--message", "Begin")
    git(tmp_path, "clone", "--quiet", "--bare", str(first), str(tmp_path / "origin"))
    return clone(tmp_path, "checkout")


def clone(tmp_path: Path, name: str) -> Path:
    git(tmp_path, "clone", "--quiet", str(tmp_path / "origin"), str(tmp_path / name))
    git(tmp_path / name, "config", "user.name", "test")
    git(tmp_path / name, "config", "user.email", "test@localhost")
    return tmp_path / name


def published(tmp_path: Path) -> str:
    return git(tmp_path / "origin", "show", f"main:deploy/{KEY}") + "\n"


def test_a_change_of_a_checkout_is_committed_and_pushed(checkout: Path, tmp_path: Path) -> None:
    source = CommittedFile(checkout / "deploy" / KEY)
    source.check_writable()
    source.write(ModelConfigText(CHANGED), "Move stable to version 4 of m")
    assert published(tmp_path) == CHANGED
    assert git(tmp_path / "origin", "log", "-1", "--format=%s", "main") == "Move stable to version 4 of m"
    assert source.read().text == CHANGED


def test_commits_of_others_do_not_prevent_the_push(checkout: Path, tmp_path: Path) -> None:
    theirs = clone(tmp_path, "theirs")
    (theirs / "other").write_text("2")
    git(theirs, "commit", "--quiet", "--all", "--message", "Theirs")
    git(theirs, "push", "--quiet")
    CommittedFile(checkout / "deploy" / KEY).write(ModelConfigText(CHANGED), "Ours")
    assert git(tmp_path / "origin", "log", "-2", "--format=%s", "main").split() == ["Ours", "Theirs"]


def test_a_commit_that_cannot_be_pushed_is_undone(checkout: Path, tmp_path: Path) -> None:
    theirs = clone(tmp_path, "theirs")
    (theirs / "deploy" / KEY).write_text(CONFIG.replace("value: 3", "value: 9"))
    git(theirs, "commit", "--quiet", "--all", "--message", "Theirs")
    git(theirs, "push", "--quiet")
    source = CommittedFile(checkout / "deploy" / KEY)
    with pytest.raises(BadConfig, match="cannot push the commit"):
        source.write(ModelConfigText(CHANGED), "Ours")
    assert "value: 9" in published(tmp_path)
    assert source.read().text == CONFIG
    assert git(checkout, "log", "-1", "--format=%s") == "Begin"
    assert git(checkout, "status", "--porcelain") == ""


def test_a_refused_push_is_reported_with_the_reason_of_the_server(checkout: Path, tmp_path: Path) -> None:
    hook = tmp_path / "origin/hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'Protected branch' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(BadConfig) as raised:
        CommittedFile(checkout / "deploy" / KEY).write(ModelConfigText(CHANGED), "Ours")
    assert "; remote: Protected branch; ! [remote rejected] main -> main" in str(raised.value)
    assert git(checkout, "log", "-1", "--format=%s") == "Begin"


def test_a_push_that_fails_is_reported_with_its_own_reason(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "origin").rename(tmp_path / "gone")
    source = CommittedFile(checkout / "deploy" / KEY)
    with pytest.raises(BadConfig, match=r"cannot push the commit: fatal: .*origin' does not appear to be a git"):
        source.write(ModelConfigText(CHANGED), "Ours")
    assert git(checkout, "log", "-1", "--format=%s") == "Begin"
    assert source.read().text == CONFIG


def test_a_checkout_without_an_upstream_is_only_committed(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "branch", "--quiet", "--unset-upstream")
    CommittedFile(checkout / "deploy" / KEY).write(ModelConfigText(CHANGED), "Ours")
    assert git(checkout, "log", "-1", "--format=%s") == "Ours"
    assert published(tmp_path) == CONFIG


def test_uncommitted_changes_and_a_file_without_a_repository_are_refused(checkout: Path, tmp_path: Path) -> None:
    (checkout / "deploy" / KEY).write_text(CHANGED)
    with pytest.raises(BadConfig, match="changes that are not committed"):
        CommittedFile(checkout / "deploy" / KEY).check_writable()
    alone = tmp_path / KEY
    alone.write_text(CONFIG)
    with pytest.raises(BadConfig, match="not a git repository"):
        CommittedFile(alone).check_writable()


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfigMapServer]:
    with serving(ConfigMapServer("serving", "tpuserve", {KEY: CONFIG, "note": "1"})) as state:
        monkeypatch.setenv("KUBECONFIG", str(state.kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.setenv("PATH", str(KUBECTL.parent), prepend=":")
        yield state


def test_a_key_of_a_config_map_changes_and_the_other_keys_stay(api: ConfigMapServer) -> None:
    source = ConfigMapKey("serving", "tpuserve")
    assert source.read().text == CONFIG
    source.check_writable()
    assert api.data == {KEY: CONFIG, "note": "1"}
    source.write(ModelConfigText(CHANGED), "Move stable")
    assert api.data == {KEY: CHANGED, "note": "1"}
    source.write(ModelConfigText(CONFIG), "Move stable back")  # the write has returned the next precondition
    assert api.data == {KEY: CONFIG, "note": "1"}


def test_a_change_of_another_client_is_not_overwritten(api: ConfigMapServer) -> None:
    source = ConfigMapKey("serving", "tpuserve")
    source.read()
    api.change({KEY: CONFIG, "note": "2"})
    with pytest.raises(Conflict, match="the object has been modified"):
        source.write(ModelConfigText(CHANGED), "Move stable")
    assert api.data == {KEY: CONFIG, "note": "2"}
    source.read()
    source.write(ModelConfigText(CHANGED), "Move stable")
    assert api.data == {KEY: CHANGED, "note": "2"}


@pytest.mark.parametrize(
    ("name", "key", "problem"),
    [
        ("none", KEY, r'\(NotFound\): configmaps "none" not found'),
        ("tpuserve", "models.txt", r"no key models.txt; its keys: models.config, note"),
        ("tpuserve", "note", "not a ModelServerConfig"),
    ],
)
def test_a_config_map_that_cannot_be_read_is_reported(api: ConfigMapServer, name: str, key: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        ConfigMapKey("serving", name, key).read()


def test_a_reader_is_refused_before_anything_changes(
    api: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "reader", READER)))
    source = ConfigMapKey("serving", "tpuserve")
    source.read()
    with pytest.raises(BadConfig, match=r"\(Forbidden\): .* cannot update"):
        source.check_writable()


def test_an_api_server_that_does_not_respond_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(ConfigMapServer("serving", "tpuserve", {})) as state:
        monkeypatch.setenv("KUBECONFIG", str(state.kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.setenv("PATH", str(KUBECTL.parent), prepend=":")
    with pytest.raises(BadConfig, match="was refused"):
        ConfigMapKey("serving", "tpuserve").read()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadConfig, match="cannot run kubectl: No such file or directory"):
        ConfigMapKey("serving", "tpuserve").read()


# Programs that do not end, and servers that are none of Kubernetes.


@contextmanager
def silent_server() -> Iterator[int]:
    """Listen on a port, accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class _Unauthorized(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("www-authenticate", 'Basic realm="origin"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_unauthorized() -> Iterator[str]:
    """Serve a remote that requires credentials, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unauthorized) as server:
        thread = threading.Thread(target=server.serve_forever, name="remote")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_an_api_server_that_never_answers_is_reported(
    api: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_server() as port:
        api.address = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "silent")))
        with pytest.raises(BadConfig, match=r"deadline exceeded|Timeout exceeded|request canceled"):
            KubernetesObject("/api/v1/namespaces/serving/configmaps/tpuserve", request_timeout_s=1).read()


def test_a_response_that_is_no_object_is_reported(api: ConfigMapServer) -> None:
    api.page = "<html>Sign in</html>"
    with pytest.raises(BadConfig, match="the API server's response is no JSON object: '<html>Sign in</html>'"):
        ConfigMapKey("serving", "tpuserve").read()
    api.page = "[]"
    with pytest.raises(BadConfig, match=r"no JSON object: '\[\]'"):
        ConfigMapKey("serving", "tpuserve").read()


def test_a_remote_that_never_answers_ends_git_and_its_children(checkout: Path) -> None:
    with silent_server() as port:
        git(checkout, "remote", "set-url", "origin", f"http://127.0.0.1:{port}/origin")
        with pytest.raises(BadConfig, match="git did not end within 1 s; its effect is unknown"):
            run_git("-C", str(checkout), "push", "--quiet", limit_s=1)
    assert git(checkout, "status", "--porcelain") == ""


def test_git_never_asks_for_a_password(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.delenv(name, raising=False)
    with serving_unauthorized() as address:
        git(checkout, "remote", "set-url", "origin", f"{address}/origin")
        with pytest.raises(BadConfig, match="terminal prompts disabled"):
            run_git("-C", str(checkout), "-c", "credential.helper=", "push", "--quiet")
