"""Labels: the names of a version's classes, which the exporter writes next to the model."""

from pathlib import Path

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.versions.manifest import Manifest

# A metadata response contains all of them.
_MOST_BYTES = 1 << 20


def read_labels(version_path: Path, manifest: Manifest | None) -> tuple[str, ...]:
    """Read the names in the order of the scores. Empty if the manifest names no file, or one above 1 MiB.

    The function reads only a file that the manifest lists, because `Manifest.verify_files` has checked its path.

    Raises:
        FailedPrecondition: the file cannot be read as text.
    """
    entry = None if manifest is None or manifest.labels is None else manifest.files.get(manifest.labels)
    if manifest is None or manifest.labels is None or entry is None or entry.size_bytes > _MOST_BYTES:
        return ()
    try:
        return tuple((version_path / manifest.labels).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise FailedPrecondition(f"{manifest.labels} cannot be read as text: {type(error).__name__}") from error
