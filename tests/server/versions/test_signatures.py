"""Tests for `--require_signed` at the load of a version: every change of a signed version is refused by name."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.saved_models import write_manifest
from tpuserve_formats.manifest import BUNDLE_FILE, MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.signing.bundle import make_bundle
from tpuserve_formats.signing.keys import key_id
from tpuserve_formats.signing.signature import SignatureFile, VersionSignature
from tpuserve_formats.version_reports import EXPORT_REPORT
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.versions.signatures import RequiredSignatures

KEY = Ed25519PrivateKey.generate()
ID = key_id(KEY.public_key())
SIGNATURES = RequiredSignatures({ID: KEY.public_key()})


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Return a signed version 3 of `m`, with a report, which no manifest lists."""
    path = tmp_path / "m" / "3"
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"graph")
    manifest = write_manifest(path).read_bytes()
    signed = SignatureFile().with_signature(VersionSignature.make(manifest, "m", 3, KEY))
    (path / SIGNATURE_FILE).write_bytes(signed.to_bytes())
    (path / EXPORT_REPORT).parent.mkdir()
    (path / EXPORT_REPORT).write_text("a report")
    return path


def check(path: Path, name: str = "m", number: int = 3) -> str:
    return SIGNATURES.check(path, ServableId(name, number)).signer


def test_a_signed_version_has_its_signer_and_manifest(version: Path) -> None:
    assert check(version) == ID
    assert SIGNATURES.check(version, ServableId("m", 3)).manifest.files.keys() == {"saved_model.pb"}


def test_the_claim_of_an_object_store_needs_no_entry(version: Path) -> None:
    (version / MANIFEST_FILE.with_name("claim")).write_text("")
    assert check(version) == ID


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / SIGNATURE_FILE).unlink(), "it is not signed: manifest.sig.json is missing"),
        (lambda path: (path / MANIFEST_FILE).unlink(), "it is not signed: manifest.json is missing"),
        (lambda path: (path / SIGNATURE_FILE).write_text("{}"), "it is signed by no key"),
        (lambda path: (path / SIGNATURE_FILE).write_text("no"), "its manifest.sig.json cannot be read"),
        (lambda path: (path / "extra").write_text(""), "the signed manifest does not list extra"),
        (lambda path: (path / "variables").mkdir() or (path / "variables/x").touch(), "does not list variables/x"),
        (lambda path: write_manifest(path), "does not match its manifest, which has changed"),
    ],
)
def test_changes_are_refused_by_name(version: Path, change: Callable[[Path], object], reason: str) -> None:
    change(version)
    with pytest.raises(FailedPrecondition, match=rf"^--require_signed refuses the version: .*{reason}.*tpuserve sign$"):
        check(version)


def test_another_model_or_number_is_refused(version: Path, tmp_path: Path) -> None:
    shutil.copytree(version, tmp_path / "m" / "9")
    with pytest.raises(FailedPrecondition, match="it is signed as m version 3, and this is m version 9"):
        check(tmp_path / "m" / "9", number=9)
    with pytest.raises(FailedPrecondition, match="it is signed as m version 3, and this is other version 3"):
        check(version, "other")


def test_a_signature_of_any_size_is_not_read(version: Path) -> None:
    with (version / SIGNATURE_FILE).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(FailedPrecondition, match=r"manifest\.sig\.json has more than 1 MiB"):
        check(version)


ECDSA = ec.generate_private_key(ec.SECP256R1())
ECDSA_ID = key_id(ECDSA.public_key())
BOTH = RequiredSignatures({ID: KEY.public_key(), ECDSA_ID: ECDSA.public_key()})


@pytest.fixture
def bundled(version: Path) -> Path:
    """Return the version with a signature in the form of OpenSSF Model Signing alone."""
    (version / SIGNATURE_FILE).unlink()
    files = ("saved_model.pb", MANIFEST_FILE.as_posix())
    digests = {name: hashlib.sha256((version / name).read_bytes()).hexdigest() for name in files}
    (version / BUNDLE_FILE).write_bytes(make_bundle(digests, "m/3", (), ECDSA))
    return version


def test_a_bundle_of_openssf_is_a_signature(bundled: Path) -> None:
    signed = BOTH.check(bundled, ServableId("m", 3))
    assert (signed.signer, set(signed.manifest.files)) == (ECDSA_ID, {"saved_model.pb"})
    with pytest.raises(FailedPrecondition, match="signs 'm/3', and this is other version 3"):
        BOTH.check(bundled, ServableId("other", 3))
    with pytest.raises(FailedPrecondition, match=rf"is signed by {ECDSA_ID}, which is not trusted"):
        SIGNATURES.check(bundled, ServableId("m", 3))
    (bundled / "extra").touch()
    with pytest.raises(FailedPrecondition, match="the signed manifest does not list extra"):
        BOTH.check(bundled, ServableId("m", 3))


def test_either_signature_is_enough_and_both_reasons_are_given(bundled: Path) -> None:
    (bundled / SIGNATURE_FILE).write_text("no")
    assert BOTH.check(bundled, ServableId("m", 3)).signer == ECDSA_ID
    write_manifest(bundled)
    (bundled / MANIFEST_FILE).write_bytes((bundled / MANIFEST_FILE).read_bytes() + b"\n")
    with pytest.raises(FailedPrecondition, match=r"manifest\.sig\.json cannot be read; model\.sig by .* has changed"):
        BOTH.check(bundled, ServableId("m", 3))
