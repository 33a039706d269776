"""Tests of releases: packages that are built twice, provenance, signatures, and the plan of the images."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.image.targets import TARGETS
from deploy.release import packages
from deploy.release.__main__ import main
from deploy.release.images import plan_images
from deploy.release.packages import NotReproducible, build_packages
from deploy.release.provenance import CHECKSUMS, PROVENANCE, SIGNATURE, Build, verify_release, write_signatures
from tests.support.optional import cannot_run, find_oip_clients
from tpuserve_formats.signing.errors import BadSignature
from tpuserve_formats.signing.keys import key_id, read_private_key, write_key_pair

BUILD = Build(
    "https://example.org/tpuserve", "c0ffee", "0.1.0", 1_700_000_000, "https://example.org/ci", {"images": []}
)


def test_packages_are_built_again_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_packages(tmp_path / "dist", BUILD.epoch_s)
    names = [path.name for path in built]
    wheels = [name for name in names if name.endswith(".whl")]
    assert len(wheels) == len([name for name in names if name.endswith(".tar.gz")]) >= 7
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == sorted(names)

    def build_other(directory: Path) -> list[Path]:
        changed = directory / wheels[0]
        changed.write_bytes(b"another wheel")
        return [changed]

    monkeypatch.setattr(packages, "build_wheels", build_other)
    with pytest.raises(NotReproducible, match=f"{wheels[0]} differs from a second build"):
        build_packages(tmp_path / "dist", BUILD.epoch_s)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a signed release of two files, beside its key pair."""
    write_key_pair(tmp_path / "key", "ecdsa-p256")
    private = read_private_key(tmp_path / "key")
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    directory = tmp_path / "dist"
    (directory / "sbom").mkdir(parents=True)
    (directory / "tpuserve.whl").write_bytes(b"wheel")
    (directory / "sbom/image.cdx.json").write_bytes(b"{}")
    write_signatures(directory, BUILD, private)
    return directory


def verify(release: Path) -> tuple[str, str]:
    return verify_release(release, (release.parent / "key.pub").read_bytes(), "key.pub")


def test_a_release_is_verified_by_its_key(release: Path) -> None:
    assert verify(release) == ("c0ffee", key_id(read_private_key(release.parent / "key").public_key()))
    checked = subprocess.run(["sha256sum", "--check", CHECKSUMS], cwd=release, capture_output=True, text=True)
    assert checked.stdout.splitlines() == ["sbom/image.cdx.json: OK", "tpuserve.whl: OK"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / "tpuserve.whl").write_bytes(b"other"), "tpuserve.whl is missing, additional or changed"),
        (lambda path: (path / "sbom/image.cdx.json").unlink(), "sbom/image.cdx.json is missing, additional or"),
        (lambda path: (path / "extra.whl").touch(), "extra.whl is missing, additional or changed"),
        (lambda path: (path / CHECKSUMS).write_text("0  tpuserve.whl\n"), f"{CHECKSUMS} is missing or changed"),
        (lambda path: (path / CHECKSUMS).unlink(), f"{CHECKSUMS} is missing or changed"),
        (lambda path: (path / PROVENANCE).unlink(), f"has no {PROVENANCE}"),
        (lambda path: (path / SIGNATURE).rename(path / PROVENANCE), "statement of the type 'https://model_signing"),
    ],
    ids=["changed", "missing", "additional", "other checksums", "no checksums", "unsigned", "another statement"],
)  # fmt: skip
def test_another_release_is_refused_with_the_reason(
    release: Path, change: Callable[[Path], object], reason: str
) -> None:
    change(release)
    with pytest.raises(BadSignature, match=reason):
        verify(release)


def test_a_release_by_another_key_is_refused(release: Path) -> None:
    write_key_pair(release.parent / "other", "ecdsa-p256")
    with pytest.raises(BadSignature, match=PROVENANCE + r" is signed by ecdsa:.*, which is not trusted"):
        verify_release(release, (release.parent / "other.pub").read_bytes(), "other.pub")


def test_a_reason_names_the_provenance(release: Path) -> None:
    (release / PROVENANCE).write_text("{}")
    with pytest.raises(BadSignature, match=f"its {PROVENANCE} is not a bundle"):
        verify(release)


# Reads the provenance with the messages of in-toto, which know the fields of SLSA's predicate.
_PARSE = """
import base64, json, sys
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1 import statement_pb2, statement
payload = base64.b64decode(json.load(open(sys.argv[1]))["dsseEnvelope"]["payload"])
message = json_format.Parse(payload, statement_pb2.Statement())
statement.Statement.copy_from_pb(message).validate()
predicate = json_format.ParseDict(json_format.MessageToDict(message.predicate), Provenance())
print(json.dumps({
    "type": message.predicate_type, "builder": predicate.run_details.builder.id,
    "subjects": [each.name for each in message.subject],
    "dependencies": [each.uri for each in predicate.build_definition.resolved_dependencies],
}))
"""


def test_other_programs_read_the_provenance_and_verify_the_signature(release: Path) -> None:
    python = find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")
    parsed = subprocess.run([python, "-c", _PARSE, release / PROVENANCE], capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    found: dict[str, Any] = json.loads(parsed.stdout)  # JSON of the script above
    assert (found["type"], found["builder"]) == ("https://slsa.dev/provenance/v1", BUILD.builder)
    assert found["subjects"] == ["sbom/image.cdx.json", "tpuserve.whl"]
    assert found["dependencies"][0] == "git+https://example.org/tpuserve@c0ffee"
    assert any(uri.startswith("docker://docker.io/library/python:3.11") for uri in found["dependencies"])
    assert "file:requirements/server.lock" in found["dependencies"]
    verified = subprocess.run(
        [python.with_name("model_signing"), "verify", "key", release, "--public_key", release.parent / "key.pub",
         "--signature", release / SIGNATURE],
        capture_output=True, text=True,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr


def test_images_are_built_for_the_platforms_of_their_wheels(tmp_path: Path) -> None:
    images = plan_images(tmp_path, list(TARGETS), ("linux/amd64", "linux/arm64"), "0.1.0")
    arm = {image.target for image in images if image.platform == "linux/arm64"}
    assert arm == {"cpu", "pjrt", "cuda", "exporter"}
    assert {image.target for image in images if image.platform == "linux/amd64"} == set(TARGETS)
    image = next(each for each in images if (each.target, each.platform) == ("pjrt", "linux/arm64"))
    assert image.archive.name == "tpuserve-server-pjrt-0.1.0-linux-arm64.tar"
    [docker] = image.commands("docker", "0.1.0", "c0ffee", 7)
    assert {"--platform=linux/arm64", "--target=pjrt", "--build-arg=REVISION=c0ffee"} <= set(docker)
    build, save = image.commands("podman", "0.1.0", "c0ffee", 7)
    assert ("--timestamp=7" in build, save[-1]) == (True, "tpuserve-server-pjrt:0.1.0-arm64")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    key = tmp_path / "key"
    write_key_pair(key, "ecdsa-p256")
    shown = run("build", tmp_path / "dist", "--dry-run", "--image", "tpu", "--key", key)
    assert shown.exit_code == 0
    assert "--platform=linux/amd64 --target=tpu" in shown.output
    assert "arm64" not in shown.output
    assert shown.output.splitlines()[-1] == f"checksums, provenance and signature with {key}"
    assert not (tmp_path / "dist").exists()


def test_a_dry_run_reads_the_key(tmp_path: Path) -> None:
    refused = run("build", tmp_path / "dist", "--dry-run", "--key", tmp_path / "missing")
    assert (refused.exit_code, "cannot read the private key" in refused.output) == (1, True)


def test_a_directory_with_files_is_refused(release: Path) -> None:
    refused = run("build", release, "--allow-dirty", "--no-sbom")
    assert (refused.exit_code, "is not empty" in refused.output) == (1, True)


def test_the_command_verifies(release: Path) -> None:
    public = release.parent / "key.pub"
    assert run("verify", release, "--key", public).output.startswith("release of commit c0ffee, signed by ecdsa:")
    (release / "tpuserve.whl").write_bytes(b"other")
    refused = run("verify", release, "--key", public)
    assert (refused.exit_code, refused.output) == (1, "Error: tpuserve.whl is missing, additional or changed\n")
