"""Signs versions: writes the file with the signatures of a manifest (docs/reference/manifest.md)."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.version.manifest import PublishedVersion, hash_file
from tpuserve_formats.manifest import MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.manifest.version import Manifest
from tpuserve_formats.signing.errors import BadKey, BadSignature
from tpuserve_formats.signing.keys import read_private_key
from tpuserve_formats.signing.signature import SignatureFile, VersionSignature
from tpuserve_formats.version_reports import REPORTS_FOLDER

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def read_key(path: Path) -> "Ed25519PrivateKey":
    """Read a private key. Raises OptionConflict for a file without one, or one that other users can read."""
    try:
        return read_private_key(path)
    except BadKey as error:
        raise OptionConflict(str(error)) from error


def sign_version(version: Path, model: str, number: int, key: "Ed25519PrivateKey") -> VersionSignature:
    """Sign the manifest of a version as version `number` of `model`. Keep signatures by other keys.

    Raises SourceUnreadable if the version has no manifest, or unreadable signatures.
    """
    manifest, path = _read(version / MANIFEST_FILE), version / SIGNATURE_FILE
    if manifest is None:
        raise SourceUnreadable(f"{version.name} has no {MANIFEST_FILE}, so it cannot be signed. Export it first")
    signature = VersionSignature.make(manifest, model, number, key)
    content = _existing(_read(path), version.name).with_signature(signature).to_bytes()
    # Next to the version, because a server that reads it at this moment must not find half a file.
    with tempfile.TemporaryDirectory(prefix=".tpuserve-sign-", dir=version.parent) as folder:
        written = Path(folder, path.name)
        written.write_bytes(content)
        os.replace(written, path)
    return signature


def check_files(version: Path) -> Manifest:
    """Compare all files of a version with its manifest, before it is signed. Reads every file.

    Raises SourceUnreadable if the manifest is missing or damaged, or a file is missing, changed or not listed.
    """
    content = _read(version / MANIFEST_FILE)
    if content is None:
        raise SourceUnreadable(f"{version.name} has no {MANIFEST_FILE}, so it cannot be signed. Export it first")
    try:
        manifest = Manifest.model_validate_json(content)
    except ValueError as error:
        raise SourceUnreadable(f"{version.name} has a damaged {MANIFEST_FILE}. Export the version again") from error
    if wrong := next(_differences(version, manifest), ""):
        raise SourceUnreadable(f"{version.name} is not the version that was exported: {wrong}. Export it again")
    return manifest


def signers_of(version: Path) -> tuple[list[str], list[str]]:
    """Return a description of each signer, and problems: signatures that do not match the manifest."""
    manifest = _read(version / MANIFEST_FILE) or b""
    try:
        signatures = _existing(_read(version / SIGNATURE_FILE), version.name).signatures
    except SourceUnreadable as error:
        return [], [str(error)]
    valid = [f"{one.key_id} as {one.subject}" for one in signatures if one.matches(manifest)]
    wrong = [one.key_id or "a damaged key" for one in signatures if not one.matches(manifest)]
    return valid, [f"the signature by {one} does not match the manifest" for one in wrong]


def is_signed_by(published: PublishedVersion, key: "Ed25519PrivateKey", model: str) -> bool:
    """Return whether a published version has a valid signature by this key, for its number."""
    if published.signatures is None or published.manifest is None:
        return False
    try:
        signatures = SignatureFile.parse(published.signatures).signatures
    except BadSignature:
        return False
    ours = VersionSignature.make(published.manifest, model, published.number, key)
    return ours in signatures


def _existing(content: bytes | None, name: str) -> SignatureFile:
    try:
        return SignatureFile() if content is None else SignatureFile.parse(content)
    except BadSignature as error:
        raise SourceUnreadable(f"{name} cannot be signed: {error}") from error


def _differences(version: Path, manifest: Manifest) -> Iterator[str]:
    files = {path.relative_to(version).as_posix(): path for path in version.rglob("*") if path.is_file()}
    unlisted = {MANIFEST_FILE.as_posix(), SIGNATURE_FILE.as_posix()}
    for name in sorted(files.keys() - manifest.files.keys() - unlisted):
        if not name.startswith(f"{REPORTS_FOLDER.as_posix()}/"):
            yield f"its manifest does not list {name}"
    for name, entry in sorted(manifest.files.items()):
        if name not in files:
            yield f"{name} is missing"
        elif hash_file(files[name]) != entry.sha256:
            yield f"{name} has changed"


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
