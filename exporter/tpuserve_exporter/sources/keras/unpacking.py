"""Unpacks a `.keras` file, which is a zip archive. Its sizes are checked before anything is written or allocated."""

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from tpuserve_exporter.errors import SourceUnreadable

WEIGHTS: Final = "model.weights.h5"
ASSETS: Final = "assets"
# Keras does not compress archives, and other tools do not compress weights so much.
_SMALL_BYTES: Final = 256 << 20
_MOST_TIMES: Final = 100


def check_content(path: Path, archive: zipfile.ZipFile) -> int:
    """Return the bytes of an archive's files, as its directory declares them.

    Raises SourceUnreadable if a path leads out of the archive, or if the file's own size contradicts the declared ones.
    """
    parts, stored = archive.infolist(), path.stat().st_size
    size = sum(one.file_size for one in parts)
    if found := next(_describe_forged(parts), None):
        raise SourceUnreadable(f"{path.name} is damaged or forged: {found}. Copy or save it again")
    if size > max(_SMALL_BYTES, _MOST_TIMES * stored):
        raise SourceUnreadable(
            f"{path.name} has {stored} bytes, but its content would have {size}, more than {_MOST_TIMES} times as "
            "many. Save the model again with model.save, which does not compress"
        )
    return size


def _describe_forged(parts: list[zipfile.ZipInfo]) -> Iterator[str]:
    for one in parts:
        place = PurePosixPath(one.filename.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts:
            yield f"its path {one.filename!r} leads out of the archive"
        if one.compress_type == zipfile.ZIP_STORED and one.file_size != one.compress_size:
            yield f"it declares {one.file_size} bytes for {one.filename}, but holds {one.compress_size}"


def unpack(path: Path, folder: Path) -> None:
    """Write the content of an archive into `folder`.

    Raises SourceUnreadable as `check_content` and if the disk lacks the space, and errors of zipfile.
    """
    with zipfile.ZipFile(path) as archive:
        size, free = check_content(path, archive), shutil.disk_usage(folder).free
        if size > free:
            raise SourceUnreadable(
                f"cannot unpack {path.name}: its content has {size} bytes, but {folder.parent} has {free} bytes free. "
                "Free space there, or name a directory on another disk with TMPDIR"
            )
        archive.extractall(folder)
