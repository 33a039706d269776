"""Provenance of a release: a statement of in-toto with SLSA's predicate, signed without a network.

The signatures are bundles of sigstore, as those of models: docs/reference/manifest.md#openssf-model-signing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from deploy.installation.wheels import ROOT
from tpuserve_formats.manifest import BUNDLE_FILE
from tpuserve_formats.signing.bundle import SignatureBundle, make_bundle, sign_statement
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import parse_public_keys

CHECKSUMS: Final = "SHA256SUMS"
PROVENANCE: Final = "provenance.sigstore.json"
SIGNATURE: Final = BUNDLE_FILE.name
# Files that the provenance does not list.
_WRITTEN_LATER: Final = frozenset((CHECKSUMS, PROVENANCE, SIGNATURE))
_PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
_BASE_IMAGE: Final = re.compile(r"^ARG PYTHON_IMAGE=(\S+)@sha256:([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Build:
    """What a release was built from. `epoch_s` is the time of the commit."""

    repository: str
    commit: str
    version: str
    epoch_s: int
    builder: str
    parameters: Mapping[str, object]

    def predicate(self) -> dict[str, object]:
        """Return SLSA's predicate (slsa.dev/spec/v1.0/provenance).

        It has no times of the build, so that another build of the commit gives the same bytes.
        """
        return {
            "buildDefinition": {
                "buildType": f"{self.repository}/blob/{self.commit}/.ci/release",
                "externalParameters": {"repository": self.repository, "commit": self.commit, **self.parameters},
                "internalParameters": {"version": self.version, "SOURCE_DATE_EPOCH": self.epoch_s},
                "resolvedDependencies": [
                    {"uri": f"git+{self.repository}@{self.commit}", "digest": {"gitCommit": self.commit}},
                    *_base_image(),
                    *_locks(),
                ],
            },
            "runDetails": {"builder": {"id": self.builder}},
        }


def _base_image() -> Iterable[dict[str, object]]:
    for image, digest in _BASE_IMAGE.findall((ROOT / "Dockerfile").read_text(encoding="utf-8")):
        yield {"uri": f"docker://{image}", "digest": {"sha256": digest}}


def _locks() -> Iterable[dict[str, object]]:
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        yield {"uri": f"file:requirements/{lock.name}", "digest": {"sha256": _sha256(lock)}}


def write_signatures(directory: Path, build: Build, key: EllipticCurvePrivateKey | None) -> list[Path]:
    """Write the checksums of all files, and with a key the provenance and the signature of the directory."""
    for name in (CHECKSUMS, PROVENANCE, SIGNATURE):
        (directory / name).unlink(missing_ok=True)
    digests = _digests(directory)
    (directory / CHECKSUMS).write_text(_checksums(digests))
    if key is None:
        return [directory / CHECKSUMS]
    (directory / PROVENANCE).write_bytes(sign_statement(digests, _PREDICATE_TYPE, build.predicate(), key))
    bundle = make_bundle(_digests(directory), f"tpuserve/{build.version}", (SIGNATURE,), key)
    (directory / SIGNATURE).write_bytes(bundle)
    return [directory / name for name in (CHECKSUMS, PROVENANCE, SIGNATURE)]


def verify_release(directory: Path, keys: bytes, origin: str) -> tuple[str, str]:
    """Return the commit of a release and the id of its signer, after a check of every file by the provenance.

    Raises:
        BadSignature: a signature is missing or not by one of the keys, or a file is missing, additional or changed.
        BadKey: `keys` has no usable public keys.
    """
    trusted = parse_public_keys(keys, origin)
    try:
        content = (directory / PROVENANCE).read_bytes()
    except OSError as error:
        raise BadSignature(f"{directory} has no {PROVENANCE}: {error.strerror}") from error
    file = Path(PROVENANCE)
    payload, signer = SignatureBundle.parse(content, file).verify(trusted, file)
    statement = json.loads(payload)
    if statement["predicateType"] != _PREDICATE_TYPE:
        raise BadSignature(f"{PROVENANCE} has a statement of the type '{statement['predicateType']}'")
    signed = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    digests = _digests(directory)
    found = {name: digest for name, digest in digests.items() if name not in _WRITTEN_LATER}
    if changed := sorted(name for name in signed.keys() | found.keys() if signed.get(name) != found.get(name)):
        raise BadSignature(f"{changed[0]} is missing, additional or changed")
    if digests.get(CHECKSUMS) != hashlib.sha256(_checksums(signed).encode()).hexdigest():
        raise BadSignature(f"{CHECKSUMS} is missing or changed")
    return statement["predicate"]["buildDefinition"]["externalParameters"]["commit"], signer


def _checksums(digests: Mapping[str, str]) -> str:
    """Return the file for `sha256sum --check`."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): _sha256(path) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
