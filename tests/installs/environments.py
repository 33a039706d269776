"""Empty virtual environments, into which uv installs the wheels of this tree and their pinned dependencies."""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.installation.install import write_pip_conf
from deploy.installation.wheels import CONSTRAINTS
from tests.support.optional import cannot_run
from tests.support.wheels import ROOT, UV, build_wheels

_OFFLINE = re.compile(r"error sending request|dns error|network|timed out", re.IGNORECASE)
_RUNS = 5
# Locks other than that of development, which has another libtpu, no CUDA and no PyTorch.
_LOCKS = {
    "tpuserve-server[tpu]": ("pjrt", "tpu"),
    "tpuserve-server[cuda]": ("pjrt", "cuda"),
    "tpuserve-server[ray]": ("dev", "ray"),
    "tpuserve-exporter[torch]": ("dev", "torch"),
    "tpuserve-exporter[huggingface]": ("dev", "torch"),
}


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with one installation."""

    folder: Path

    @property
    def bin(self) -> Path:
        """Directory of its programs."""
        return self.folder / "bin"

    @property
    def scripts(self) -> list[str]:
        """Names of tpuserve's programs, in alphabetical order."""
        return sorted(
            path.name for path in self.bin.iterdir() if path.name.startswith(("tpuserve", "tensorflow_model"))
        )

    def run(
        self, program: str, *arguments: str | Path, code: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with more environment variables, and check its exit code."""
        ran = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, f"{program} {arguments}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran

    def size_bytes(self) -> int:
        """Return the size of the installed files, without bytecode."""
        files = (Path(folder, name) for folder, _, names in os.walk(self.folder) for name in names)
        return sum(file.lstat().st_size for file in files if file.suffix != ".pyc")

    def import_ms(self, statement: str) -> float:
        """Return the CPU time of an import statement in milliseconds: the least of several runs, with bytecode."""
        self.run("python", "-c", statement)
        return max(0.0, self._cpu_ms(statement) - self._cpu_ms("pass"))

    def _cpu_ms(self, statement: str) -> float:
        program = f"{statement}\nimport time\nprint(time.process_time())"
        printed = [self.run("python", "-c", program).stdout.split()[-1] for _ in range(_RUNS)]
        return min(map(float, printed)) * 1000


class Environments:
    """Makes environments below a directory. Each installation is made once. Blocks on builds and downloads."""

    def __init__(self, folder: Path) -> None:
        """Take an empty directory for the wheels and environments. Hard links to uv's cache fill the environments."""
        self._folder = folder
        self._made: dict[str, Environment] = {}

    def make(self, requirement: str) -> Environment:
        """Install a requirement, such as `tpuserve-server[pjrt]`, into an empty environment.

        Skips the running test if the package index cannot be reached.
        """
        if requirement not in self._made:
            environment = self._empty(requirement)
            self._install(environment, requirement, _lock_files(_LOCKS.get(requirement, ("dev",))))
            self._made[requirement] = environment
        return self._made[requirement]

    def make_with_pip(self, name: str, commands: Sequence[str]) -> Environment:
        """Run the installations of a page: `make install`, which all pages assume, and its `pip install` commands.

        `name` is a new one. pip fails the test with its output if a command fails.
        """
        words = [word for command in commands for word in shlex.split(command, comments=True)]
        packages = [word.partition("=")[2] for word in words if word.startswith("PACKAGES=")]
        environment = self._empty(name, "--seed")
        for requirement in " ".join(packages).split() or ["tpuserve"]:
            self._install(environment, requirement, [self._wheels / CONSTRAINTS])
        write_pip_conf(environment.folder, self._wheels)
        # The variable would hide the configuration of the environment, which has its places.
        variables = {key: value for key, value in os.environ.items() if key != "PIP_FIND_LINKS"}
        variables["PATH"] = f"{environment.bin}:{os.environ['PATH']}"
        for command in (command for command in commands if command.startswith("pip ")):
            ran = subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True, check=False)
            assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return environment

    def remove(self, requirement: str) -> None:
        """Delete an environment, so that the next `make` installs it again."""
        shutil.rmtree(self._made.pop(requirement).folder)

    def plan(self, requirement: str) -> set[str]:
        """Return the names of all distributions that an installation would have, without a download of them."""
        environment = self._empty(requirement)
        # PyTorch's CPU build, which its lock pins, is not on the index.
        locks = [lock for lock in _LOCKS.get(requirement, ("dev",)) if lock != "torch"]
        listed = self._install(environment, requirement, _lock_files(locks), "--dry-run")
        return {line.split()[1].partition("==")[0] for line in listed.splitlines() if line.startswith(" + ")}

    def _empty(self, requirement: str, *options: str) -> Environment:
        environment = Environment(self._folder / re.sub(r"\W+", "-", requirement).strip("-"))
        # An environment remains from a plan.
        _uv("venv", "--quiet", "--clear", *options, "--python", sys.executable, environment.folder)
        return environment

    def _install(self, environment: Environment, requirement: str, files: Sequence[Path], *options: str) -> str:
        constraints = (f"--constraint={file}" for file in files)
        # As in `make lock`: pip's settings locate PyTorch's CPU build.
        places = (self._wheels, *os.environ.get("PIP_FIND_LINKS", "").split())
        links = (f"--find-links={place}" for place in places)
        target = f"--python={environment.bin / 'python'}"
        return _uv("pip", "install", *options, target, *links, *constraints, requirement)

    @functools.cached_property
    def _wheels(self) -> Path:
        directory = self._folder / "wheels"
        build_wheels(directory)
        return directory


def _lock_files(names: Iterable[str]) -> list[Path]:
    return [ROOT / "requirements" / f"{name}.lock" for name in names]


def _uv(*arguments: str | Path) -> str:
    """Run uv and return its messages."""
    ran = subprocess.run([UV, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode != 0 and _OFFLINE.search(ran.stderr):
        cannot_run(f"needs the package index: {ran.stderr.strip().splitlines()[-1]}")
    if ran.returncode != 0:
        pytest.fail(ran.stderr)
    return ran.stderr
