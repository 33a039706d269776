"""Files that a deployment is rendered to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tpuserve_exporter.errors import PublishFailed

_PACKAGED: Final = Path(__file__).with_name("manifests")


def packaged_manifests(folder: str) -> Mapping[str, str]:
    """Return the texts of tpuserve's Kustomize base and components, by name below `folder`."""
    files = sorted(_PACKAGED.rglob("*.yaml"))
    return {f"{folder}/{path.relative_to(_PACKAGED)}": path.read_text(encoding="utf-8") for path in files}


def write_files(directory: Path, files: Mapping[str, str], *, replace: bool) -> list[Path]:
    """Write the files, and return their paths. Create directories that do not exist.

    With `replace`, files of the same names are replaced, and other files stay.

    Raises:
        PublishFailed: a file exists and `replace` is false, or the directory cannot be written.
    """
    paths = {directory / name: text for name, text in files.items()}
    existing = [path for path in paths if path.exists() or path.is_symlink()]
    if existing and not replace:
        raise PublishFailed(f"{existing[0]} exists. Use another --output, or --force to replace it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, text)
    except OSError as error:
        raise PublishFailed(f"cannot write {error.filename or directory}: {error.strerror}") from error
    return list(paths)


def _write(path: Path, text: str) -> None:
    """Replace the file in one step, so that no reader sees a part of it."""
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)
