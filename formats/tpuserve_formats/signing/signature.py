"""The signature file of a version, `manifest.sig.json`: one or more signatures of its manifest.

A signature names the model and the number of the version. Otherwise, a person who can write to the store could replace
a version by an older one, or by one of another model, whose signatures are valid too.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from tpuserve_formats.manifest import SIGNATURE_FILE
from tpuserve_formats.manifest.part import Part
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import PublicKey, key_id

MAX_SIGNATURE_BYTES = 2**20
_CONTEXT = b"tpuserve-manifest-v1\n"


class VersionSignature(Part):
    """One signature. `public_key` and `signature` are in base64."""

    public_key: str
    model: str
    version: int
    signature: str

    @classmethod
    def make(cls, manifest: bytes, model: str, version: int, key: Ed25519PrivateKey) -> Self:
        """Sign the exact bytes of a manifest for this version of this model."""
        signed = key.sign(_message(manifest, model, version))
        public = key.public_key().public_bytes_raw()
        return cls(
            public_key=base64.b64encode(public).decode(),
            model=model,
            version=version,
            signature=base64.b64encode(signed).decode(),
        )

    @property
    def key_id(self) -> str:
        """Key id of the signer; empty for a damaged key."""
        key = self._key()
        return "" if key is None else key_id(key)

    @property
    def subject(self) -> str:
        """The signed version, for people."""
        return f"{self.model} version {self.version}"

    def matches(self, manifest: bytes) -> bool:
        """Return whether this is the signature of these bytes, by the key that it names itself."""
        key = self._key()
        if key is None:
            return False
        try:
            key.verify(base64.b64decode(self.signature, validate=True), _message(manifest, self.model, self.version))
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True

    def _key(self) -> Ed25519PublicKey | None:
        try:
            return Ed25519PublicKey.from_public_bytes(base64.b64decode(self.public_key, validate=True))
        except (binascii.Error, ValueError):
            return None


class SignatureFile(Part):
    """The content of the file."""

    format_version: Literal[1] = 1
    signatures: tuple[VersionSignature, ...] = ()

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Parse the file. Raises BadSignature."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise BadSignature(f"its {SIGNATURE_FILE.name} cannot be read") from error

    def with_signature(self, signature: VersionSignature) -> Self:
        """Return the file with a signature, instead of an earlier one by the same key."""
        others = [one for one in self.signatures if one.public_key != signature.public_key]
        return self.model_copy(update={"signatures": (*others, signature)})

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        return f"{self.model_dump_json(indent=2)}\n".encode()

    def find_signer(self, manifest: bytes, model: str, version: int, trusted: Mapping[str, PublicKey]) -> str:
        """Return the id of a trusted key that signed this version. Raises BadSignature with the reason if none did."""
        ours = [one for one in self.signatures if one.key_id in trusted and _is_key(one, trusted[one.key_id])]
        if not ours:
            signers = ", ".join(one.key_id or "a damaged key" for one in self.signatures) or "no key"
            raise BadSignature(f"it is signed by {signers}, which this server does not trust")
        valid = [one for one in ours if one.matches(manifest)]
        if not valid:
            raise BadSignature(f"the signature by {ours[0].key_id} does not match its manifest, which has changed")
        for one in valid:
            if (one.model, one.version) == (model, version):
                return one.key_id
        raise BadSignature(f"it is signed as {valid[0].subject}, and this is {model} version {version}")


def _is_key(signature: VersionSignature, key: PublicKey) -> bool:
    """Return whether a signature names exactly this key. Two keys could have the same id."""
    return (
        isinstance(key, Ed25519PublicKey) and signature.public_key == base64.b64encode(key.public_bytes_raw()).decode()
    )


def _message(manifest: bytes, model: str, version: int) -> bytes:
    subject = json.dumps({"model": model, "version": version}, sort_keys=True)
    return b"".join((_CONTEXT, subject.encode(), b"\n", manifest))
