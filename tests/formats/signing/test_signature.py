"""Tests for keys and signatures: a signature holds for one manifest of one version, by one key."""

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tpuserve_formats.signing.errors import BadKey, BadSignature
from tpuserve_formats.signing.keys import key_id, parse_public_keys, read_private_key, write_key_pair
from tpuserve_formats.signing.signature import SignatureFile, VersionSignature

MANIFEST = b'{"format_version": 1}'
OURS, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TRUSTED = {key_id(OURS.public_key()): OURS.public_key()}


def signed(key: Ed25519PrivateKey = OURS, model: str = "m", version: int = 3) -> SignatureFile:
    return SignatureFile().with_signature(VersionSignature.make(MANIFEST, model, version, key))


def test_a_signature_holds_for_its_manifest_model_and_version() -> None:
    file = SignatureFile.parse(signed().to_bytes())
    assert file.find_signer(MANIFEST, "m", 3, TRUSTED) == key_id(OURS.public_key())


@pytest.mark.parametrize(
    ("file", "manifest", "model", "version", "reason"),
    [
        (signed(), MANIFEST + b" ", "m", 3, "does not match its manifest, which has changed"),
        (signed(), MANIFEST, "m", 4, "it is signed as m version 3, and this is m version 4"),
        (signed(), MANIFEST, "n", 3, "it is signed as m version 3, and this is n version 3"),
        (signed(OTHER), MANIFEST, "m", 3, "which this server does not trust"),
        (SignatureFile(), MANIFEST, "m", 3, "signed by no key"),
    ],
)
def test_other_signatures_are_refused_with_the_reason(
    file: SignatureFile, manifest: bytes, model: str, version: int, reason: str
) -> None:
    with pytest.raises(BadSignature, match=reason):
        file.find_signer(manifest, model, version, TRUSTED)


def test_a_changed_subject_is_refused() -> None:
    [one] = signed().signatures
    forged = SignatureFile(signatures=(one.model_copy(update={"version": 4}),))
    with pytest.raises(BadSignature, match="does not match its manifest"):
        forged.find_signer(MANIFEST, "m", 4, TRUSTED)


def test_a_subject_cannot_be_moved_into_the_manifest() -> None:
    """The message separates model, version and manifest, whatever they contain."""
    one = VersionSignature.make(b"x", 'm", "version": 3}\n', 1, OURS)
    moved = one.model_copy(update={"model": "m", "version": 3})
    assert not moved.matches(b'", "version": 1}\nx')


@pytest.mark.parametrize("field", ["public_key", "signature"])
@pytest.mark.parametrize("value", ["", "no base64", base64.b64encode(b"short").decode()])
def test_damaged_values_are_refused(field: str, value: str) -> None:
    [one] = signed().signatures
    with pytest.raises(BadSignature):
        SignatureFile(signatures=(one.model_copy(update={field: value}),)).find_signer(MANIFEST, "m", 3, TRUSTED)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format_version": 2}', b'{"signatures": [{}]}'])
def test_files_that_are_not_signatures_are_refused(content: bytes) -> None:
    with pytest.raises(BadSignature, match="cannot be read"):
        SignatureFile.parse(content)


def test_a_version_may_have_signatures_by_several_keys() -> None:
    both = signed(OTHER).with_signature(VersionSignature.make(MANIFEST, "m", 3, OURS))
    again = both.with_signature(VersionSignature.make(MANIFEST, "m", 4, OURS))
    assert both.find_signer(MANIFEST, "m", 3, TRUSTED)
    assert len(again.signatures) == 2
    assert again.find_signer(MANIFEST, "m", 4, TRUSTED)


def test_a_key_pair_signs_and_verifies(tmp_path: Path) -> None:
    public = write_key_pair(tmp_path / "key")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert list(parse_public_keys((tmp_path / "key.pub").read_bytes(), "key.pub")) == [key_id(public)]
    private = read_private_key(tmp_path / "key")
    assert isinstance(private, Ed25519PrivateKey)
    file = signed(private)
    assert file.find_signer(
        MANIFEST, "m", 3, parse_public_keys((tmp_path / "key.pub").read_bytes(), "key.pub")
    ) == key_id(public)
    with pytest.raises(FileExistsError):
        write_key_pair(tmp_path / "key")


def test_one_file_may_have_several_public_keys(tmp_path: Path) -> None:
    ids = [key_id(write_key_pair(tmp_path / name)) for name in "ab"]
    (tmp_path / "keys").write_bytes((tmp_path / "a.pub").read_bytes() + (tmp_path / "b.pub").read_bytes())
    assert list(parse_public_keys((tmp_path / "keys").read_bytes(), "keys")) == ids


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(BadKey, match=f"other users can access the private key {tmp_path}/key. Run chmod 600"):
        read_private_key(tmp_path / "key")


def test_files_without_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("no key")
    (tmp_path / "no").chmod(0o600)
    curve = ec.generate_private_key(ec.SECP256K1()).public_key()
    (tmp_path / "curve").write_bytes(curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for path, read in ((tmp_path / "no", read_private_key), (tmp_path / "absent", read_private_key)):
        with pytest.raises(BadKey):
            read(path)
    for name in ("no", "curve"):
        with pytest.raises(BadKey, match=name):
            parse_public_keys((tmp_path / name).read_bytes(), name)
