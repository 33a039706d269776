"""Manifests of versions, as the server, its device programs and the exporter read them."""

import tempfile
from pathlib import Path

from pydantic import ValidationError

from tests.fuzz.target import Target, expect
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.manifest.version import Manifest as WholeManifest
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.executors.pjrt.manifest import ProgramManifest, served_signature
from tpuserve_server.versions.manifest import Manifest, missing_file


def run(data: bytes) -> bool:
    """Read a manifest in every reader. The server must read what the exporter would write."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MANIFEST_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        is_read = _server(Path(folder))
        _programs(Path(folder))
    return any([is_read, _whole(data)])


def _whole(data: bytes) -> bool:
    try:
        manifest = WholeManifest.model_validate_json(data)
    except ValidationError:
        return False
    written = manifest.model_dump_json().encode()
    Manifest.parse(written)
    expect(WholeManifest.model_validate_json(written) == manifest or b"NaN" in written, "it reads differently")
    return True


def _server(folder: Path) -> bool:
    try:
        manifest = Manifest.read(folder)
    except FailedPrecondition:
        return False
    if manifest is not None:
        missing_file(folder)
        _ = manifest.precision, [entry.pad_values for entry in manifest.signatures.values()]
    return manifest is not None


def _programs(folder: Path) -> None:
    try:
        programs = ProgramManifest.read(folder)
        if programs is not None:
            for name, entry in programs.signatures.items():
                served_signature(name, entry, "")
                programs.has_independent_rows(name)
    except FailedPrecondition:
        return


TARGET = Target(
    run,
    words=(
        b'"format_version":1', b'"signatures":', b'"files":', b'"device":', b'"parts":', b'"sha256":', b'"size_bytes":',
        b'"batch_sizes":', b'"inputs":', b'"outputs":', b'"dtype":"float32"', b'"shape":[null]', b'"pad_value":',
        b'"../x"', b'"\\u0000"', b'"parity":', b'"atol":null', b'"programs":', b'"weights":',
    ),
)  # fmt: skip
