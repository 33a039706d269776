"""Tests for the files of credentials, and for their changes while the server runs."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.access import AUDIENCE, ISSUER, KeyFile, TokenIssuer
from tpuserve_server.access.credentials import CredentialsError, no_certificate
from tpuserve_server.access.files import MAX_FILE_BYTES, CredentialFiles
from tpuserve_server.access.options import IdentityOptions
from tpuserve_server.core.terms.errors import InvalidArgument, Unauthenticated
from tpuserve_server.storage.named_file import read_file


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "credentials")
    file.add("alice", "read")
    return file


@pytest.fixture
def files(keys: KeyFile) -> Iterator[CredentialFiles]:
    """Yield files that are polled on request only."""
    files = CredentialFiles(IdentityOptions(keys.path, credentials_poll_wait_seconds=0), read_file)
    yield files
    files.stop()


def knows(files: CredentialFiles, key: str) -> bool:
    try:
        files.authenticator.identify({"x-api-key": key}, no_certificate)
    except Unauthenticated:
        return False
    return True


def test_a_changed_file_replaces_all_keys(keys: KeyFile, files: CredentialFiles) -> None:
    old = keys.keys["alice"]
    keys.lines.clear()
    new = keys.add("alice", "read")
    assert (knows(files, old), knows(files, new)) == (True, False)
    files.poll()
    assert (knows(files, old), knows(files, new)) == (False, True)


@pytest.mark.parametrize("text", ["alice read", "", "\xff", None])
def test_a_bad_file_keeps_the_keys_and_says_why(
    keys: KeyFile, files: CredentialFiles, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    good = keys.path.read_text()
    if text is None:
        keys.path.unlink()
    else:
        keys.path.write_bytes(text.encode("latin-1"))
    with caplog.at_level(logging.ERROR):
        files.poll()
        files.poll()
    assert files.problem.startswith("credentials_file: ")
    assert str(keys.path) not in files.problem
    assert [record.getMessage() for record in caplog.records] == [
        f"Credentials refused; the server keeps the previous ones: {files.problem}"
    ]
    assert knows(files, keys.keys["alice"])
    keys.path.write_text(good)
    files.poll()
    assert files.problem == ""


def test_a_poll_on_request_logs_that_nothing_changed(files: CredentialFiles, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        files.poll()
        assert not caplog.records
        files.poll_soon()
        files.poll()
    assert "The credentials have not changed" in caplog.text


def test_the_thread_polls_when_asked(keys: KeyFile, files: CredentialFiles) -> None:
    files.start()
    key = keys.add("bob", "read")
    files.poll_soon()
    while not knows(files, key):
        threading.Event().wait(0.01)


def test_the_thread_polls_by_itself(keys: KeyFile) -> None:
    files = CredentialFiles(IdentityOptions(keys.path, credentials_poll_wait_seconds=0.01), read_file)
    files.start()
    try:
        key = keys.add("bob", "read")
        while not knows(files, key):
            threading.Event().wait(0.01)
    finally:
        files.stop()


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read: No such file"), (b"x" * (MAX_FILE_BYTES + 1), "more than")]
)
def test_a_server_does_not_start_without_its_file(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "credentials"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CredentialsError, match=f"^credentials_file: .*{reason}"):
        CredentialFiles(IdentityOptions(path), read_file)


def test_a_changed_jwks_forgets_tokens_of_removed_keys(tmp_path: Path) -> None:
    path, first, second = tmp_path / "jwks.json", TokenIssuer(), TokenIssuer()
    path.write_text(first.jwks())
    files = CredentialFiles(IdentityOptions(None, path, ISSUER, AUDIENCE, credentials_poll_wait_seconds=0), read_file)
    token = first.token()
    assert knows(files, token)
    path.write_text(second.jwks("two"))
    files.poll()
    assert (knows(files, token), knows(files, second.token(kid="two"))) == (False, True)
    path.write_text("{}")
    files.poll()
    assert files.problem.startswith("jwt_jwks_file: it is no JWKS")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"jwt_jwks_file": Path("k")}, "jwt_jwks_file needs jwt_issuer and jwt_audience"),
        ({"jwt_jwks_file": Path("k"), "jwt_issuer": "i"}, "jwt_jwks_file needs jwt_issuer and jwt_audience"),
        ({"jwt_issuer": "i"}, "need jwt_jwks_file"),
        (
            {"anonymous_roles": ("read", "write")},
            "expected some of predict, read, control, got 'write'",
        ),
    ],
)
def test_flags_that_make_no_sense_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        replace(IdentityOptions(), **changes)  # type: ignore[arg-type]  # of the fields


def test_clients_are_identified_once_a_flag_is_set() -> None:
    assert not IdentityOptions().are_set
    assert IdentityOptions(anonymous_roles=()).are_set
    assert IdentityOptions(Path("k")).are_set
