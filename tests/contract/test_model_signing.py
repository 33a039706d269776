"""Signatures of versions and those of OpenSSF's own program, model_signing, in `.oip-clients`: each verifies both."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.exporter.test_signing import write_version
from tests.support.optional import cannot_run, find_oip_clients
from tpuserve_exporter.version.signing import check_and_sign
from tpuserve_formats.manifest import BUNDLE_FILE, FORMAT_VERSION, MANIFEST_FILE
from tpuserve_formats.signing.keys import key_id, read_private_key, write_key_pair
from tpuserve_formats.version_reports import EXPORT_REPORT
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.versions.signatures import RequiredSignatures


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """Return version 3 of `m`, with a report, which no signature covers, and a key pair beside it."""
    write_key_pair(tmp_path / "key", "ecdsa-p256")
    path = write_version(tmp_path / "m" / "3")
    manifest = json.loads((path / MANIFEST_FILE).read_text())
    (path / MANIFEST_FILE).write_text(json.dumps({"format_version": FORMAT_VERSION, **manifest}))
    (path / EXPORT_REPORT).parent.mkdir()
    (path / EXPORT_REPORT).write_text("a report")
    return path


def model_signing(action: str, version: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    python = find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")
    program = Path(python).with_name("model_signing")
    return subprocess.run(
        [program, action, "key", version, f"--signature={version / BUNDLE_FILE}", *flags],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def served(version: Path) -> str:
    """Return the signer that a server with --require_signed finds."""
    public = version.parents[1] / "key.pub"
    return RequiredSignatures.parse(public.read_bytes(), "key.pub").check(version, ServableId("m", 3)).signer


def test_model_signing_verifies_what_tpuserve_signs(version: Path, tmp_path: Path) -> None:
    check_and_sign(version, "m", 3, read_private_key(tmp_path / "key"))
    public = f"--public_key={tmp_path / 'key.pub'}"
    verified = model_signing("verify", version, public)
    assert verified.returncode == 0, verified.stderr
    (version / "saved_model.pb").write_bytes(b"other")
    assert model_signing("verify", version, public).returncode != 0


def test_a_server_accepts_what_model_signing_signs(version: Path, tmp_path: Path) -> None:
    signed = model_signing("sign", version, f"--private_key={tmp_path / 'key'}")
    assert signed.returncode == 0, signed.stderr
    assert served(version) == key_id(read_private_key(tmp_path / "key").public_key())
    version.rename(version.with_name("4"))
    with pytest.raises(FailedPrecondition, match="signs '3', and this is m version 4"):
        RequiredSignatures.parse((tmp_path / "key.pub").read_bytes(), "key.pub").check(
            version.with_name("4"), ServableId("m", 4)
        )
