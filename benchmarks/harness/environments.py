"""Environments outside the workspace's lock, below .peers/: one per peer, and one that draws charts.

Each environment has its own lock with hashes, and the libraries compiled from the C files next to the lock. It is
rebuilt when one of these files changes.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.targets import ROOT

ENVIRONMENTS = ROOT / ".peers"
PEERS = ROOT / "benchmarks" / "peers"
# Not a peer: the environment with matplotlib for the drawing programs.
CHARTS = "charts"
_STAMP = "lock.sha256"
# Enough for a gigabyte on a slow connection.
TIMEOUT_S = 1800.0


class SetupFailed(RuntimeError):
    """An environment could not be built. The message ends with the output of uv or gcc."""


def python(name: str) -> Path:
    """Return the interpreter's path in an environment, which may not exist yet."""
    return ENVIRONMENTS / name / "bin" / "python"


def lock_file(name: str) -> Path:
    """Return the lock of an environment."""
    folder = ROOT / "benchmarks" / CHARTS if name == CHARTS else PEERS / name
    return folder / "requirements.lock"


def is_ready(name: str) -> bool:
    """Return whether the environment exists and matches the current lock and C files."""
    stamp = ENVIRONMENTS / name / _STAMP
    return python(name).exists() and stamp.exists() and stamp.read_text() == _fingerprint(name)


def build(name: str) -> None:
    """Build the environment with the running Python. Slow: downloads packages that uv has not cached.

    A C file `NAME.c` becomes `NAME.so` in the environment, for this machine's processor.
    """
    target = ENVIRONMENTS / name
    shutil.rmtree(target, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(target))
    _uv("pip", "sync", "--python", str(python(name)), "--require-hashes", str(lock_file(name)))
    for source in _sources(name):
        options = ("-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
        _run("gcc", *options, "-o", str(target / f"{source.stem}.so"), str(source))
    (target / _STAMP).write_text(_fingerprint(name))


def draw(program: str, figures: Path, picture: Path) -> None:
    """Draw `picture` (.svg) from `figures` (.json) with a program of benchmarks/charts/. Builds the environment if
    needed.

    Raises:
        SetupFailed: the environment could not be built, or the program failed.
    """
    if not is_ready(CHARTS):
        build(CHARTS)
    picture.parent.mkdir(exist_ok=True)
    command = [str(python(CHARTS)), str(ROOT / "benchmarks" / CHARTS / program), str(figures), str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupFailed(f"{program} did not draw {picture.name}:\n{done.stderr[-1000:]}")


def lock(name: str) -> None:
    """Update the lock from the environment's requirements.in."""
    requirements = lock_file(name).with_suffix(".in")
    _uv(
        *("pip", "compile", "--universal", "--generate-hashes", "--python-version", "3.11", "--upgrade"),
        *("--custom-compile-command", "python -m benchmarks peers --lock"),
        *("--output-file", str(lock_file(name)), str(requirements)),
    )


def pinned(name: str, package: str) -> str:
    """Return the version of a package in the lock. Raises SetupFailed if the lock lacks it."""
    for line in lock_file(name).read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line.removeprefix(f"{package}==").split()[0]
    raise SetupFailed(
        f"{lock_file(name).name} of {name} does not pin {package}. Run: python -m benchmarks peers --lock"
    )


def _sources(name: str) -> list[Path]:
    """Return the C files of an environment."""
    return sorted(lock_file(name).parent.glob("*.c"))


def _fingerprint(name: str) -> str:
    files = (lock_file(name), *_sources(name))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _uv(*arguments: str) -> None:
    _run(str(Path(sys.executable).with_name("uv")), *arguments, "--quiet")


def _run(program: str, *arguments: str) -> None:
    name = Path(program).name
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"{name} {arguments[0]}: {error}") from error
    if done.returncode:
        raise SetupFailed(f"{name} {' '.join(arguments[:2])} failed:\n{done.stderr[-2000:]}")
