import ast
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.harness import environments
from benchmarks.harness.environments import CHARTS, SetupFailed
from benchmarks.peers.peers import main
from benchmarks.peers.servers import PROGRAMS, SUBJECTS, version

PEERS = [subject for subject in SUBJECTS if not subject.is_ours]


@pytest.mark.parametrize("name", sorted({CHARTS, *(peer.environment for peer in PEERS)}))
def test_locks_pin_with_hashes_and_name_no_registry(name: str) -> None:
    text = environments.lock_file(name).read_text()
    requirements = [line for line in text.splitlines() if line and line[0] not in " #"]
    assert requirements
    assert all(re.match(r"[a-z0-9._-]+==\S+ .*\\$", line) for line in requirements)
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= len(requirements)
    assert "://" not in text


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_a_program_and_a_version(peer: object) -> None:
    subject = next(subject for subject in PEERS if subject is peer)
    ast.parse((PROGRAMS / subject.environment / subject.program).read_text())
    assert re.match(r"\d+\.\d+", version(subject))


def test_a_package_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(SetupFailed, match="does not pin tensorflow-lite"):
        environments.pinned("triton", "tensorflow-lite")


def test_an_environment_is_ready_as_long_as_its_lock_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(environments, "PEERS", tmp_path / "locks")
    lock = environments.lock_file("empty")
    lock.parent.mkdir(parents=True)
    lock.write_text("# nothing\n")
    assert not environments.is_ready("empty")
    environments.build("empty")
    assert environments.is_ready("empty")
    lock.write_text("# nothing more\n")
    assert not environments.is_ready("empty")
    lock.write_text("no requirement at all\n")
    with pytest.raises(SetupFailed, match="uv pip sync failed"):
        environments.build("empty")
    assert not environments.is_ready("empty")


def test_c_files_of_an_environment_are_compiled_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(environments, "PEERS", tmp_path / "locks")
    # A compiler that copies, and fails for an empty file.
    compiler = tmp_path / "programs" / "gcc"
    compiler.parent.mkdir()
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntest -s "$3" && cp "$3" "$2" || { echo empty >&2; exit 1; }\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=os.pathsep)
    lock = environments.lock_file("compiled")
    lock.parent.mkdir(parents=True)
    lock.write_text("# nothing\n")
    source = lock.with_name("backend.c")
    for text in ("one", "two"):
        source.write_text(text)
        assert not environments.is_ready("compiled")
        environments.build("compiled")
        assert (tmp_path / "environments" / "compiled" / "backend.so").read_text() == text
        assert environments.is_ready("compiled")
    source.write_text("")
    with pytest.raises(SetupFailed, match=r"gcc -O3 .* failed:\nempty"):
        environments.build("compiled")
    assert not environments.is_ready("compiled")


def test_unknown_servers_are_refused_by_name() -> None:
    result = CliRunner().invoke(main, ["--only", "triton,tensorflow-serving"])
    assert result.exit_code == 2
    assert "Unknown server 'tensorflow-serving'. The servers are tpuserve, triton, triton-c" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--turns", "3", "--docs"), "--turns excludes --docs"),
        (("--turns", "3", "--in-flight", "1,few"), "'1,few' is not a list of whole numbers"),
        (("--turns", "3", "--in-flight", "0"), "'0' is not a list of whole numbers"),
        (("--turns", "3", "--before", "."), "Run `make setup` there"),
    ],
)
def test_turns_that_cannot_be_measured_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_missing_tools_are_named_by_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.peers.missing_tools", lambda: ["wrk", "nghttp2-client"])
    result = CliRunner().invoke(main, ["--only", "tpuserve"])
    assert result.exit_code == 2
    assert "apt-get install wrk nghttp2-client" in result.output


def test_help_shows_examples() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert "python -m benchmarks peers --setup-only" in result.output
    assert "--only tpuserve,triton" in result.output
