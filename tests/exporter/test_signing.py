"""Tests of `tpuserve sign`, `tpuserve keygen` and the signatures of published versions, without TensorFlow."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tpuserve_exporter.command.signing import keygen, sign
from tpuserve_exporter.destinations.local_directory import LocalDirectory
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.version.manifest import describe_files
from tpuserve_exporter.version.signing import is_signed_by, read_manifest_key, sign_version, signers_of
from tpuserve_formats.manifest import BUNDLE_FILE, MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.signing.keys import key_id, parse_public_keys, write_key_pair


def write_version(path: Path) -> Path:
    """Write a version with a small manifest, as far as signatures need it."""
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"graph")
    files = {name: one.model_dump() for name, one in describe_files(path, lambda *_: None).items()}
    manifest = {
        "exporter_version": "1", "created_at": "now", "source": {"kind": "keras", "name": "m"},
        "compute_dtype": "float32", "cpu": {}, "signatures": {}, "parity": {}, "files": files,
    }  # fmt: skip
    (path / MANIFEST_FILE).parent.mkdir(parents=True)
    (path / MANIFEST_FILE).write_text(json.dumps(manifest))
    return path


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    assert run(keygen, tmp_path / "key").return_value == 0
    return tmp_path / "key"


def test_a_version_is_signed_under_its_directory_names(tmp_path: Path, key: Path) -> None:
    version = write_version(tmp_path / "digits" / "3")
    done = run(sign, version, "--key", key)
    signer = key_id(read_manifest_key(key).public_key())
    assert (done.return_value, done.stdout) == (0, f"signed digits version 3 by {signer}\n")
    assert signers_of(version) == ([f"{signer} as digits version 3"], [])
    assert [path.name for path in version.parent.iterdir()] == ["3"]


def test_another_name_and_number_may_be_signed(tmp_path: Path, key: Path) -> None:
    version = write_version(tmp_path / "digits" / "release")
    assert run(sign, version, "--key", key).return_value == 2
    done = run(sign, version, "--key", key, "--model", "other", "--number", 7, "--json")
    assert json.loads(done.stdout)["version"] == 7
    assert signers_of(version)[0][0].endswith(" as other version 7")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / "saved_model.pb").write_bytes(b"other"), "saved_model.pb has changed"),
        (lambda path: (path / "saved_model.pb").unlink(), "saved_model.pb is missing"),
        (lambda path: (path / "extra").touch(), "its manifest does not list extra"),
        (lambda path: (path / MANIFEST_FILE).write_text("{}"), "has a damaged"),
        (lambda path: (path / MANIFEST_FILE).unlink(), "so it cannot be signed. Export it first"),
    ],
)
def test_only_the_exported_version_is_signed(
    tmp_path: Path, key: Path, change: Callable[[Path], object], reason: str
) -> None:
    version = write_version(tmp_path / "m" / "1")
    change(version)
    done = run(sign, version, "--key", key)
    assert done.return_value == 6
    assert reason in done.stderr
    assert not (version / SIGNATURE_FILE).exists()


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, key: Path) -> None:
    key.chmod(0o644)
    done = run(sign, write_version(tmp_path / "m" / "1"), "--key", key)
    assert done.return_value == 2
    assert f"Run chmod 600 {key}" in done.stderr


def test_keygen_replaces_no_key(tmp_path: Path, key: Path) -> None:
    before = key.read_bytes()
    assert run(keygen, key).return_value == 2
    assert key.read_bytes() == before


def test_signatures_of_other_keys_stay(tmp_path: Path, key: Path) -> None:
    version = write_version(tmp_path / "m" / "1")
    write_key_pair(tmp_path / "other")
    assert run(sign, version, "--key", key).return_value == 0
    assert run(sign, version, "--key", tmp_path / "other").return_value == 0
    assert len(signers_of(version)[0]) == 2


def test_a_publication_signs_the_number_that_it_gets(tmp_path: Path, key: Path) -> None:
    private, base = read_manifest_key(key), tmp_path / "digits"
    write_version(base / "4")
    destination = LocalDirectory(base)
    with destination.staging() as staged:
        write_version(staged)
        number = destination.publish(staged, "next", lambda number: _sign(staged, number, key))
    assert number == 5
    newest = destination.newest()
    assert newest is not None
    assert is_signed_by(newest, private, "digits")
    assert not is_signed_by(newest, private, "other")
    write_key_pair(tmp_path / "other")
    assert not is_signed_by(newest, read_manifest_key(tmp_path / "other"), "digits")


def _sign(staged: Path, number: int, key: Path) -> None:
    sign_version(staged, "digits", number, read_manifest_key(key))


def test_a_signature_that_does_not_match_is_a_problem_of_inspect(tmp_path: Path, key: Path) -> None:
    version = write_version(tmp_path / "m" / "1")
    run(sign, version, "--key", key)
    manifest = (version / MANIFEST_FILE).read_text()
    (version / MANIFEST_FILE).write_text(f"{manifest} ")
    valid, problems = signers_of(version)
    assert (valid, len(problems)) == ([], 1)
    assert "does not match the manifest" in problems[0]


def test_a_file_without_a_key_is_a_wrong_option(tmp_path: Path) -> None:
    with pytest.raises(OptionConflict, match="cannot read the private key"):
        read_manifest_key(tmp_path / "absent")


def test_an_ecdsa_key_signs_in_the_form_of_openssf(tmp_path: Path) -> None:
    assert run(keygen, tmp_path / "key", "--type", "ecdsa-p256").return_value == 0
    version = write_version(tmp_path / "digits" / "3")
    done = run(sign, version, "--key", tmp_path / "key")
    [signer] = parse_public_keys((tmp_path / "key.pub").read_bytes(), "key.pub")
    assert (done.return_value, done.stdout) == (0, f"signed digits version 3 by {signer}\n")
    assert signers_of(version) == ([f"{signer} as digits/3 (model.sig, not verified)"], [])
    assert run(sign, version, "--key", tmp_path / "key").return_value == 0
    (version / BUNDLE_FILE).write_text("no")
    assert signers_of(version) == ([], ["its model.sig is not a bundle of a DSSE envelope"])


def test_problems_of_both_forms_of_signatures_are_reported(tmp_path: Path, key: Path) -> None:
    version = write_version(tmp_path / "m" / "1")
    run(sign, version, "--key", key)
    (version / MANIFEST_FILE).write_text(f"{(version / MANIFEST_FILE).read_text()} ")
    (version / BUNDLE_FILE).write_text("no")
    valid, problems = signers_of(version)
    assert (valid, len(problems)) == ([], 2)


def test_an_export_signs_with_ed25519_alone(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", "ecdsa-p256")
    with pytest.raises(OptionConflict, match="Use tpuserve sign after the export"):
        read_manifest_key(tmp_path / "key")
