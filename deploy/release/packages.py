"""Wheels and source distributions of a release, built so that the same commit always gives the same bytes."""

import filecmp
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from deploy.installation.wheels import CONSTRAINTS, ROOT, UV, build_wheels


class NotReproducible(Exception):
    """Two builds differ. The message names the file and the builds."""


def build_packages(directory: Path, epoch_s: int) -> list[Path]:
    """Build the wheels, constraints.txt and the source distributions of all members of the workspace. Needs no network.

    It builds each wheel three times: twice from the checkout, and once from the source distribution. `epoch_s` is the
    time of the commit, which a build backend may write into archives.

    Raises:
        NotReproducible: two of the three wheels differ.
        subprocess.CalledProcessError: uv failed. It has printed the reason.
    """
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    wheels = build_wheels(directory)
    for old in directory.glob("tpuserve*.tar.gz"):
        old.unlink()
    _build("--all-packages", "--sdist", "--out-dir", directory)
    (directory / ".gitignore").unlink(missing_ok=True)  # uv adds it, and it is no part of a release.
    sources = sorted(directory.glob("tpuserve*.tar.gz"))
    with tempfile.TemporaryDirectory() as folder:
        again, from_sources = Path(folder, "again"), Path(folder, "from-sources")
        _build("--all-packages", "--wheel", "--out-dir", again)
        for source in sources:
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
            _build("--wheel", "--out-dir", from_sources, Path(folder, source.name.removesuffix(".tar.gz")))
        _compare(wheels, again, "a second build")
        _compare(wheels, from_sources, "the build of its source distribution")
    return [*wheels, directory / CONSTRAINTS, *sources]


def _build(*arguments: str | Path) -> None:
    subprocess.run((UV, "build", "--quiet", "--offline", *_absolute(arguments)), cwd=ROOT, check=True)


def _absolute(arguments: Iterable[str | Path]) -> Iterable[str | Path]:
    return (each.resolve() if isinstance(each, Path) else each for each in arguments)


def _compare(wheels: Iterable[Path], others: Path, what: str) -> None:
    for wheel in wheels:
        other = others / wheel.name
        if not other.exists() or not filecmp.cmp(wheel, other, shallow=False):
            raise NotReproducible(f"{wheel.name} differs from {what}.")
