"""`python3 -m deploy.image.slim ENVIRONMENT`: remove what no program of an image uses from its virtual environment.

The Dockerfile runs it with the base image's Python, so it uses the standard library alone.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.image.symbols import remove_symbols

# Files for building extensions, which an image without a compiler cannot use, and the packages' own tests. Patterns
# are relative to site-packages.
UNUSED = (
    "tensorflow/include",
    "tensorflow/xla_aot_runtime_src",
    "**/*.a",
    "numpy/_core/include",
    "numpy/**/tests",
    "scipy/**/tests",
    "h5py/tests",
)
# Smaller files are not worth the reading.
SMALLEST_LIBRARY_BYTES = 1 << 20


def main(environment: Path) -> None:
    """Remove the files and print the megabytes of each pattern."""
    # uv's lock, which every user may write to.
    (environment / ".lock").unlink(missing_ok=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for pattern in UNUSED:
        saved = sum(_remove(path) for path in list(packages.glob(pattern)))
        if saved:
            _print(saved, pattern)
    _print(sum(map(remove_symbols, _libraries(packages))), "symbol tables")


def _remove(path: Path) -> int:
    """Remove a file or a directory. Return its size in bytes."""
    if not path.is_dir():
        size = path.lstat().st_size
        path.unlink()
        return size
    size = sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
    shutil.rmtree(path)
    return size


def _libraries(packages: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(packages):
        for path in (Path(folder, name) for name in names):
            is_native = ".so" in path.name or os.access(path, os.X_OK)
            if is_native and not path.is_symlink() and path.stat().st_size >= SMALLEST_LIBRARY_BYTES:
                yield path


def _print(size_bytes: int, removed: str) -> None:
    sys.stdout.write(f"Removed {size_bytes / 1e6:.1f} MB: {removed}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
