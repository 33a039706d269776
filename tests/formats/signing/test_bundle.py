"""Tests of signatures in the form of OpenSSF Model Signing. tests/contract/test_model_signing.py has its program."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.signing.bundle import SignatureBundle, make_bundle
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import PublicKey, key_id, parse_public_keys, read_private_key, write_key_pair

MANIFEST = b'{"format_version": 1}'
OURS, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP384R1())
DIGESTS = {
    "saved_model.pb": hashlib.sha256(b"graph").hexdigest(),
    MANIFEST_FILE.as_posix(): hashlib.sha256(MANIFEST).hexdigest(),
}


def trusted(*keys: ec.EllipticCurvePrivateKey) -> dict[str, PublicKey]:
    return {key_id(key.public_key()): key.public_key() for key in keys}


def bundle(key: ec.EllipticCurvePrivateKey = OURS) -> bytes:
    return make_bundle(DIGESTS, "m/3", ["model.sig"], key)


def find_signer(content: bytes, manifest: bytes = MANIFEST, model: str = "m", version: int = 3) -> str:
    return SignatureBundle.parse(content).find_signer(manifest, model, version, trusted(OURS))


@pytest.mark.parametrize("key", [OURS, OTHER, ec.generate_private_key(ec.SECP521R1())], ids=["p256", "p384", "p521"])
def test_a_bundle_holds_for_its_manifest_model_and_version(key: ec.EllipticCurvePrivateKey) -> None:
    parsed = SignatureBundle.parse(bundle(key))
    assert parsed.find_signer(MANIFEST, "m", 3, trusted(OTHER, key)) == key_id(key.public_key()) == parsed.key_id
    assert parsed.subject == "m/3"


@pytest.mark.parametrize(
    ("content", "manifest", "model", "version", "reason"),
    [
        (bundle(), MANIFEST + b" ", "m", 3, "does not match its manifest, which has changed"),
        (bundle(), MANIFEST, "m", 4, "signs 'm/3', and this is m version 4"),
        (bundle(), MANIFEST, "n", 3, "signs 'm/3', and this is n version 3"),
        (bundle(OTHER), MANIFEST, "m", 3, "is signed by ecdsa:.*, which is not trusted"),
    ],
)
def test_other_bundles_are_refused_with_the_reason(
    content: bytes, manifest: bytes, model: str, version: int, reason: str
) -> None:
    with pytest.raises(BadSignature, match=reason):
        find_signer(content, manifest, model, version)


def changed(change: Callable[[dict[str, Any], dict[str, Any]], object], *, is_signed: bool = False) -> bytes:
    """Return a bundle after a change of itself or its statement, which the trusted key signs again or not."""
    outer = json.loads(bundle())
    statement = json.loads(base64.b64decode(outer["dsseEnvelope"]["payload"]))
    change(outer, statement)
    payload = json.dumps(statement).encode()
    outer["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    if is_signed:
        kind = outer["dsseEnvelope"]["payloadType"].encode()
        encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        signature = OURS.sign(encoded, ec.ECDSA(SHA256()))
        outer["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    return json.dumps(outer).encode()


def rename(name: str) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    return lambda _, statement: statement["subject"][0].update(name=name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (changed(rename("m/4")), "is not valid"),
        (changed(lambda outer, _: outer["dsseEnvelope"].update(payloadType="text")), "is not valid"),
        (changed(lambda outer, _: outer["dsseEnvelope"].update(signatures=[])), "is not valid"),
        (changed(lambda outer, _: outer["dsseEnvelope"]["signatures"][0].update(sig="?")), "is not base64"),
        (changed(lambda outer, _: outer["verificationMaterial"].pop("publicKey")), "not certificates"),
        (b"{}", "is not a bundle"),
        (b"no", "is not a bundle"),
        (
            changed(lambda _, s: s["predicate"]["serialization"].update(method="shards"), is_signed=True),
            "sha256 of shards. Sign with sha256 of files",
        ),
        (changed(lambda _, s: s["predicate"]["resources"][0].update(digest="00"), is_signed=True), "is inconsistent"),
        (changed(lambda _, s: s["predicate"]["resources"][0].update(digest="x"), is_signed=True), "not hexadecimal"),
        (changed(lambda _, s: s.update(predicateType="other"), is_signed=True), "a statement of the type 'other'"),
        (changed(lambda _, s: s.update(subject=[]), is_signed=True), "names 0 models"),
        (changed(lambda _, s: s.pop("predicate"), is_signed=True), "has no statement of OpenSSF Model Signing"),
        (changed(rename("x/3"), is_signed=True), "signs 'x/3'"),
    ],
)
def test_damaged_and_forged_bundles_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(BadSignature, match=reason):
        find_signer(content)


def test_the_name_of_the_directory_is_enough() -> None:
    """The program model_signing names a version by its directory."""
    assert find_signer(changed(rename("3"), is_signed=True))
    with pytest.raises(BadSignature, match="signs '3', and this is m version 4"):
        find_signer(changed(rename("3"), is_signed=True), version=4)


def test_a_bundle_without_a_hint_is_tried_with_each_key() -> None:
    assert find_signer(changed(lambda outer, _: outer["verificationMaterial"].update(publicKey={}), is_signed=True))


def test_a_key_pair_signs_and_verifies(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key", "ecdsa-p256")
    private = read_private_key(tmp_path / "key")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    keys = parse_public_keys((tmp_path / "key.pub").read_bytes(), "key.pub")
    assert SignatureBundle.parse(bundle(private)).find_signer(MANIFEST, "m", 3, keys) in keys
