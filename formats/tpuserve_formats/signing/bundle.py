"""The signature file `model.sig` in the form of OpenSSF Model Signing: a sigstore bundle with a DSSE envelope.

The envelope has an in-toto statement with the sha256 of every file (github.com/sigstore/model-transparency, predicate
v1.0). The package model-signing has 30 dependencies, so this module reads and writes the form by itself. It supports
ECDSA keys, and neither certificates nor the identities of Sigstore.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from pydantic import Field, ValidationError

from tpuserve_formats.manifest import BUNDLE_FILE, MANIFEST_FILE
from tpuserve_formats.manifest.part import Part
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import PublicKey, hash_of_curve, key_id_of_hint, pem_hint

MAX_BUNDLE_BYTES = 64 * 2**20
_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"


class _DsseSignature(Part):
    sig: str


class _Envelope(Part):
    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: tuple[_DsseSignature, ...]


class _KeyHint(Part):
    hint: str = ""


class _Material(Part):
    public_key: _KeyHint | None = Field(default=None, alias="publicKey")


class _Subject(Part):
    name: str
    digest: Mapping[str, str]


class _Resource(Part):
    name: str
    algorithm: str
    digest: str


class _Serialization(Part):
    method: str
    hash_type: str


class _Predicate(Part):
    serialization: _Serialization
    resources: tuple[_Resource, ...]


class _Statement(Part):
    type: str = Field(alias="_type")
    subject: tuple[_Subject, ...]
    predicate_type: str = Field(alias="predicateType")
    predicate: _Predicate


class SignatureBundle(Part):
    """The content of the file."""

    material: _Material = Field(alias="verificationMaterial")
    envelope: _Envelope = Field(alias="dsseEnvelope")

    @classmethod
    def parse(cls, content: bytes, file: PurePath = BUNDLE_FILE) -> Self:
        """Parse the file of this name. Raises BadSignature."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise BadSignature(f"its {file} is not a bundle of a DSSE envelope") from error

    @property
    def key_id(self) -> str:
        """Key id of the signer by the bundle's own words; empty for a certificate or an old bundle."""
        return key_id_of_hint(self.material.public_key.hint) if self.material.public_key else ""

    @property
    def subject(self) -> str:
        """Name of the signed version, before the signature is verified. Raises BadSignature."""
        return _parse_statement(self._payload()).subject[0].name

    def find_signer(self, manifest: bytes, model: str, version: int, trusted: Mapping[str, PublicKey]) -> str:
        """Return the id of a trusted key that signed this manifest, as a file of this version.

        A name is `MODEL/VERSION`, as tpuserve writes it, or the name of the version's directory, as the command
        model_signing does. The second one does not bind the model.

        Raises:
            BadSignature: no trusted key signed it, or the statement is of another version, form or manifest.
        """
        payload, signer = self.verify(trusted)
        statement = _parse_statement(payload)
        name = statement.subject[0].name
        if name not in (f"{model}/{version}", str(version)):
            raise BadSignature(f"{BUNDLE_FILE} signs '{name}', and this is {model} version {version}")
        digests = {each.name: each.digest for each in statement.predicate.resources}
        if digests.get(MANIFEST_FILE.as_posix()) != hashlib.sha256(manifest).hexdigest():
            raise BadSignature(f"{BUNDLE_FILE} by {signer} does not match its manifest, which has changed")
        return signer

    def verify(self, trusted: Mapping[str, PublicKey], file: PurePath = BUNDLE_FILE) -> tuple[bytes, str]:
        """Return the statement as JSON, and the id of the trusted key that signed it.

        Raises:
            BadSignature: no trusted key signed it. The message names the file.
        """
        payload = self._payload()
        return payload, self._find_key(payload, trusted, file)

    def _payload(self) -> bytes:
        return _decode(self.envelope.payload)

    def _find_key(self, payload: bytes, trusted: Mapping[str, PublicKey], file: PurePath) -> str:
        keys = {name: key for name, key in trusted.items() if isinstance(key, EllipticCurvePublicKey)}
        if self.material.public_key is None:
            raise BadSignature(f"{file} has no key. This server verifies ECDSA keys, and not certificates")
        candidates = {name: key for name, key in keys.items() if not self.key_id or name == self.key_id}
        if not candidates:
            raise BadSignature(f"{file} is signed by {self.key_id or 'a key'}, which is not trusted")
        signed = _signed_bytes(self.envelope.payload_type, payload)
        for name, key in candidates.items():
            if any(_is_valid(key, each.sig, signed) for each in self.envelope.signatures):
                return name
        raise BadSignature(f"the signature in {file} by {', '.join(candidates)} is not valid")


def make_bundle(digests: Mapping[str, str], name: str, ignored: Iterable[str], key: EllipticCurvePrivateKey) -> bytes:
    """Return the content of the file for a directory. `digests` are the sha256 of its files in hex, by relative path.

    `name` is `MODEL/VERSION` for a version. `ignored` are the paths that a verifier must not expect in the statement.
    """
    names = sorted(digests)
    predicate = {
        "serialization": {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": sorted(ignored),
        },
        "resources": [{"name": each, "algorithm": "sha256", "digest": digests[each]} for each in names],
    }
    root = _root_digest(digests[each] for each in names)
    return sign_statement({name: root}, _PREDICATE_TYPE, predicate, key)


def sign_statement(
    subjects: Mapping[str, str], predicate_type: str, predicate: Mapping[str, object], key: EllipticCurvePrivateKey
) -> bytes:
    """Return a bundle with a statement of in-toto about `subjects`, which are sha256 in hex by name."""
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": predicate_type,
        "predicate": predicate,
    }
    payload = json.dumps(statement).encode()
    public = key.public_key()
    signature = key.sign(_signed_bytes(_PAYLOAD_TYPE, payload), ECDSA(hash_of_curve(public)))
    bundle: dict[str, Any] = {  # JSON of several depths
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": pem_hint(public)}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return f"{json.dumps(bundle)}\n".encode()


def _parse_statement(payload: bytes) -> _Statement:
    """Return a statement about files, whose digest of all digests fits. Raises BadSignature."""
    try:
        statement = _Statement.model_validate_json(payload)
    except ValidationError as error:
        raise BadSignature(f"{BUNDLE_FILE} has no statement of OpenSSF Model Signing v1.0") from error
    if (statement.type, statement.predicate_type) != (_STATEMENT_TYPE, _PREDICATE_TYPE):
        raise BadSignature(f"{BUNDLE_FILE} has a statement of the type '{statement.predicate_type}'")
    form = statement.predicate.serialization
    if (form.method, form.hash_type) != ("files", "sha256"):
        raise BadSignature(f"{BUNDLE_FILE} has {form.hash_type} of {form.method}. Sign with sha256 of files")
    if len(statement.subject) != 1:
        raise BadSignature(f"{BUNDLE_FILE} names {len(statement.subject)} models, and not one")
    try:
        digest = _root_digest(each.digest for each in statement.predicate.resources)
    except ValueError as error:
        raise BadSignature(f"{BUNDLE_FILE} has a digest that is not hexadecimal") from error
    if digest != statement.subject[0].digest.get("sha256"):
        raise BadSignature(f"{BUNDLE_FILE} is inconsistent: its digests have another digest")
    return statement


def _root_digest(digests: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def _signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding (github.com/secure-systems-lab/dsse, protocol.md)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _is_valid(key: EllipticCurvePublicKey, signature: str, signed: bytes) -> bool:
    try:
        key.verify(_decode(signature), signed, ECDSA(hash_of_curve(key)))
    except InvalidSignature:
        return False
    return True


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSignature(f"{BUNDLE_FILE} has text that is not base64") from error
