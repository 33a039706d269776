"""An environment for each peer, below .peers/, from a lock of its own: hash-checked, built anew when that changes."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.targets import ROOT

ENVIRONMENTS = ROOT / ".peers"
LOCKS = ROOT / "benchmarks" / "peers"
# Not a peer: what draws the chart.
CHART = "chart"
_STAMP = "lock.sha256"
# A gigabyte at most, on a slow line.
TIMEOUT_S = 1800.0


class SetupFailed(RuntimeError):
    """An environment could not be built; the message ends with what uv said."""


def python(name: str) -> Path:
    """The interpreter of an environment, built or not."""
    return ENVIRONMENTS / name / "bin" / "python"


def lock_file(name: str) -> Path:
    """The pins of an environment."""
    return LOCKS / name / "requirements.lock"


def is_ready(name: str) -> bool:
    """Whether the environment is there, and of the lock as it is now."""
    stamp = ENVIRONMENTS / name / _STAMP
    return python(name).exists() and stamp.exists() and stamp.read_text() == _fingerprint(name)


def build(name: str) -> None:
    """Make the environment, with the Python that runs this. Slow, and from the registry unless uv has cached it."""
    target = ENVIRONMENTS / name
    shutil.rmtree(target, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(target))
    _uv("pip", "sync", "--python", str(python(name)), "--require-hashes", str(lock_file(name)))
    (target / _STAMP).write_text(_fingerprint(name))


def lock(name: str) -> None:
    """Pin anew what the environment's requirements.in asks for."""
    wanted = lock_file(name).with_suffix(".in")
    _uv(
        *("pip", "compile", "--universal", "--generate-hashes", "--python-version", "3.11", "--upgrade"),
        *("--custom-compile-command", "python benchmarks/peers.py --lock"),
        *("--output-file", str(lock_file(name)), str(wanted)),
    )


def pinned(name: str, package: str) -> str:
    """The version of a package that the lock pins; raises SetupFailed when it is not there."""
    for line in lock_file(name).read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line.removeprefix(f"{package}==").split()[0]
    raise SetupFailed(f"{lock_file(name).name} of {name} does not pin {package}")


def _fingerprint(name: str) -> str:
    return hashlib.sha256(lock_file(name).read_bytes()).hexdigest()


def _uv(*arguments: str) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *arguments, "--quiet"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupFailed(f"uv {arguments[0]}: {error}") from error
    if done.returncode:
        raise SetupFailed(f"uv {' '.join(arguments[:2])} failed:\n{done.stderr[-2000:]}")
