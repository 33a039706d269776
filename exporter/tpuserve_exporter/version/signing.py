"""Signs versions: writes the file with the signatures of a manifest, or a bundle (docs/reference/manifest.md)."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tpuserve_exporter.errors import OptionConflict, SourceUnreadable
from tpuserve_exporter.version.manifest import PublishedVersion, hash_file
from tpuserve_formats.manifest import BUNDLE_FILE, MANIFEST_FILE, SIGNATURE_FILE
from tpuserve_formats.manifest.version import Manifest
from tpuserve_formats.signing.bundle import SignatureBundle, make_bundle
from tpuserve_formats.signing.errors import BadKey, BadSignature
from tpuserve_formats.signing.keys import PrivateKey, key_id, read_private_key
from tpuserve_formats.signing.signature import SignatureFile, VersionSignature
from tpuserve_formats.version_reports import REPORTS_FOLDER

# Files that no statement lists: signatures, reports, the claim of a number in an object store, and those of Git.
_UNSIGNED: Final = (
    BUNDLE_FILE.as_posix(),
    SIGNATURE_FILE.as_posix(),
    MANIFEST_FILE.with_name("claim").as_posix(),
    REPORTS_FOLDER.as_posix(),
    *(".git", ".gitattributes", ".github", ".gitignore"),
)


def read_key(path: Path) -> PrivateKey:
    """Read a private key. Raises OptionConflict for a file without one, or one that other users can read."""
    try:
        return read_private_key(path)
    except BadKey as error:
        raise OptionConflict(str(error)) from error


def read_manifest_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key that signs manifests. Raises OptionConflict as `read_key`, and for an ECDSA key."""
    key = read_key(path)
    if isinstance(key, Ed25519PrivateKey):
        return key
    raise OptionConflict(f"{path} is an ECDSA key, but --sign needs an ed25519 key. Use tpuserve sign after the export")


def check_and_sign(version: Path, model: str, number: int, key: PrivateKey) -> str:
    """Compare all files of a version with its manifest, sign it in the form of the key, and return the key's id.

    Raises SourceUnreadable as `check_files` and `sign_version` do.
    """
    manifest = check_files(version)
    if isinstance(key, Ed25519PrivateKey):
        return sign_version(version, model, number, key).key_id
    digests = {name: entry.sha256 for name, entry in manifest.files.items()}
    digests[MANIFEST_FILE.as_posix()] = hash_file(version / MANIFEST_FILE)
    _write(version, BUNDLE_FILE, make_bundle(digests, f"{model}/{number}", _UNSIGNED, key))
    return key_id(key.public_key())


def sign_version(version: Path, model: str, number: int, key: Ed25519PrivateKey) -> VersionSignature:
    """Sign the manifest of a version as version `number` of `model`. Keep signatures by other keys.

    Raises SourceUnreadable if the version has no manifest, or unreadable signatures.
    """
    manifest = _read(version / MANIFEST_FILE)
    if manifest is None:
        raise SourceUnreadable(f"{version.name} has no {MANIFEST_FILE}, so it cannot be signed. Export it first")
    signature = VersionSignature.make(manifest, model, number, key)
    content = _existing(_read(version / SIGNATURE_FILE), version.name).with_signature(signature).to_bytes()
    _write(version, SIGNATURE_FILE, content)
    return signature


def _write(version: Path, path: Path, content: bytes) -> None:
    # Next to the version, because a server that reads it at this moment must not find half a file.
    with tempfile.TemporaryDirectory(prefix=".tpuserve-sign-", dir=version.parent) as folder:
        written = Path(folder, path.name)
        written.write_bytes(content)
        os.replace(written, version / path)


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
    problems = [f"the signature by {one} does not match the manifest" for one in wrong]
    if (bundle := _read(version / BUNDLE_FILE)) is not None:
        try:
            parsed = SignatureBundle.parse(bundle)
            # A bundle has no key to verify it with.
            valid.append(f"{parsed.key_id or 'a certificate'} as {parsed.subject} ({BUNDLE_FILE}, not verified)")
        except BadSignature as error:
            problems.append(str(error))
    return valid, problems


def is_signed_by(published: PublishedVersion, key: Ed25519PrivateKey, model: str) -> bool:
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
    unlisted = {MANIFEST_FILE.as_posix(), SIGNATURE_FILE.as_posix(), BUNDLE_FILE.as_posix()}
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
