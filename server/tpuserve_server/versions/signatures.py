"""RequiredSignatures: with `--require_signed`, refuses versions that no trusted key has signed.

A signature has the form of tpuserve, or that of OpenSSF Model Signing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tpuserve_formats.manifest import BUNDLE_FILE, MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.signing.bundle import MAX_BUNDLE_BYTES, SignatureBundle
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import PublicKey, parse_public_keys
from tpuserve_formats.signing.signature import MAX_SIGNATURE_BYTES, SignatureFile
from tpuserve_formats.version_reports import REPORTS_FOLDER
from tpuserve_server.core.models.local_storage import VersionTree
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.storage import show_name
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.versions.manifest import MAX_MANIFEST_BYTES, Manifest, read_content

# Files that no manifest lists: the manifest, its signatures, and the exporter's claim of a number in an object store.
_UNLISTED: Final = frozenset(
    name.as_posix() for name in (MANIFEST_FILE, SIGNATURE_FILE, BUNDLE_FILE, MANIFEST_FILE.with_name("claim"))
)
_REPORTS: Final = f"{REPORTS_FOLDER.as_posix()}/"


@dataclass(frozen=True, slots=True)
class Signed:
    """A manifest with a valid signature, and the key id of its signer."""

    manifest: Manifest
    signer: str


class RequiredSignatures:
    """Check of signatures with the operator's public keys. Thread-safe; keeps no state."""

    def __init__(self, keys: Mapping[str, PublicKey]) -> None:
        """Trust these keys, by key id."""
        self._keys = keys

    @classmethod
    def parse(cls, content: bytes, origin: str) -> Self:
        """Trust the public keys in a PEM file, which errors name `origin`. Raises BadKey."""
        return cls(parse_public_keys(content, origin))

    def check(self, version_path: Path, servable_id: ServableId) -> Signed:
        """Return the signed manifest of a version. Reads the manifest and its signatures, and lists the other files.

        Raises:
            FailedPrecondition: the version has no manifest or no valid signature of a trusted key for this model and
                number, or it has a file that the manifest does not list.
        """
        content = read_content(version_path, MANIFEST_FILE, MAX_MANIFEST_BYTES)
        if content is None:
            raise _refusal(f"it is not signed: {MANIFEST_FILE.name} is missing")
        signer = self._find_signer(version_path, content, servable_id)
        manifest = Manifest.parse(content)
        names = VersionTree.read(version_path).names
        extra = [name for name in names if name not in manifest.files and not _is_unlisted(name)]
        if extra:
            raise _refusal(f"the signed manifest does not list {show_name(min(extra))}")
        return Signed(manifest, signer)

    def _find_signer(self, version_path: Path, manifest: bytes, servable_id: ServableId) -> str:
        """Return a signer by either signature file. Raises FailedPrecondition with the reasons of all that exist."""
        readers = (
            (SIGNATURE_FILE, MAX_SIGNATURE_BYTES, SignatureFile),
            (BUNDLE_FILE, MAX_BUNDLE_BYTES, SignatureBundle),
        )
        reasons = []
        for path, max_bytes, form in readers:
            content = read_content(version_path, path, max_bytes)
            if content is None:
                continue
            try:
                return form.parse(content).find_signer(manifest, servable_id.name, servable_id.version, self._keys)
            except BadSignature as error:
                reasons.append(str(error))
        raise _refusal("; ".join(reasons) or f"it is not signed: {SIGNATURE_FILE.name} is missing")


def _is_unlisted(name: str) -> bool:
    return name in _UNLISTED or name.startswith(_REPORTS)


def _refusal(reason: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"--require_signed refuses the version: {reason}. Export it with --sign, or sign it with tpuserve sign"
    )
