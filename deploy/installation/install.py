"""`python -m deploy.installation.install PREFIX REQUIREMENT...`: install wheels of this tree into an environment.

`make install` runs it. `--compiled` installs the server's wheel of `make compiled` instead of the pure one. The
environment keeps the wheels and the constraints, and its pip.conf names them. Therefore `pip install tpuserve-…` works
in it as if an index had the distributions. Running it again upgrades.

Exit codes: 0 installed, 1 pip failed, 2 PREFIX is not usable.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.installation.wheels import CONSTRAINTS, ROOT, build_wheels

# Lies in an environment that this program made.
_SHARE: Final = Path("share/tpuserve/wheels")
COMPILED: Final = ROOT / "build/compiled"
_PIP_CONF: Final = """\
# `make install` wrote this file. The wheels of tpuserve, and the versions of other packages that it was tested with.
[global]
find-links = {places}
constraint = {constraints}
"""


def main(arguments: Sequence[str]) -> int:
    """Install the requirements into the environment PREFIX, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prefix")
    parser.add_argument("requirements", nargs="+")
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args(arguments)
    prefix, requirements = Path(given.prefix).expanduser().absolute(), given.requirements
    compiled = _compiled_wheel() if given.compiled else None
    refusal = _why_unusable(prefix)
    if given.compiled and compiled is None:
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        refusal = f"{COMPILED} has no wheel for {python}. Type: rm -rf .compiler; make compiled"
    if refusal:
        sys.stderr.write(f"{refusal}\n")
        return 2
    try:
        _make(prefix, compiled)
        _install(prefix, requirements)
    except subprocess.CalledProcessError:
        sys.stderr.write("The installation failed. The lines above have the reason. Then run the same command again.\n")
        return 1
    sys.stdout.write(f"\nInstalled {' '.join(requirements)} in {prefix}. Type:\n\n")
    sys.stdout.write(f"  source {_in_home(prefix)}/bin/activate\n  tpuserve --help\n")
    return 0


def _why_unusable(prefix: Path) -> str:
    if prefix.exists() and not prefix.is_dir():
        return f"{prefix} is a file. Set PREFIX to another directory: make install PREFIX=~/tpuserve"
    if prefix.is_dir() and any(prefix.iterdir()) and not (prefix / _SHARE).is_dir():
        return f"{prefix} is not empty, and `make install` did not make it. Set PREFIX to another directory."
    if any(character.isspace() for character in str(prefix)):
        return f"{prefix} has a space in its name, which pip's configuration does not allow. Set PREFIX to another one."
    return ""


def _compiled_wheel() -> Path | None:
    """Return the wheel of `make compiled` for this version of Python, if there is one."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return next(COMPILED.glob(f"tpuserve_server-*-{tag}-{tag}-*.whl"), None)


def _make(prefix: Path, compiled: Path | None) -> None:
    """Create the environment, or bring its wheels up to date. `compiled` replaces the server's pure wheel."""
    _step(f"Building the wheels into {prefix / _SHARE}")
    build_wheels(prefix / _SHARE)
    if compiled is not None:
        for pure in (prefix / _SHARE).glob("tpuserve_server-*.whl"):
            pure.unlink()
        shutil.copy(compiled, prefix / _SHARE)
    # venv writes pip last, so an interrupted run is repeated.
    if not (prefix / "bin/pip").exists():
        _step(f"Creating a virtual environment in {prefix}")
        subprocess.run([sys.executable, "-m", "venv", prefix], check=True)
    write_pip_conf(prefix, prefix / _SHARE)


def write_pip_conf(prefix: Path, wheels: Path) -> None:
    """Let pip in the environment PREFIX find the wheels, and keep to their constraints."""
    # pip reads only the last configuration that has find-links, so this one repeats the places of the others.
    got = subprocess.run(
        [*_pip(prefix), "config", "get", "global.find-links"], capture_output=True, text=True, check=False
    )
    places = dict.fromkeys((str(wheels), *os.environ.get("PIP_FIND_LINKS", "").split(), *got.stdout.split()))
    text = _PIP_CONF.format(places="\n    ".join(places), constraints=wheels / CONSTRAINTS)
    (prefix / "pip.conf").write_text(text, encoding="utf-8")


def _install(prefix: Path, requirements: Sequence[str]) -> None:
    """Install the requirements, and this tree's wheel of each distribution that is already there."""
    wheels = sorted((prefix / _SHARE).glob("*.whl"))
    present = [wheel for wheel in wheels if _is_installed(prefix, wheel)]
    # An environment variable would hide the configuration, but adds to options.
    pip = (*_pip(prefix), "install", f"--find-links={prefix / _SHARE}")
    size = ", which takes about 2 GB of the disk" if _is_everything(requirements) else ""
    _step(f"Installing {' '.join(requirements)}{size}")
    subprocess.run([*pip, "--upgrade", "--upgrade-strategy=only-if-needed", *requirements, *present], check=True)
    if present:
        # pip keeps a distribution of the same version, although its files may differ.
        subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", "--force-reinstall", *present], check=True)


def _pip(prefix: Path) -> tuple[str | Path, ...]:
    return (prefix / "bin/python", "-m", "pip", "--disable-pip-version-check")


def _is_installed(prefix: Path, wheel: Path) -> bool:
    name = wheel.name.partition("-")[0]
    return any(prefix.glob(f"lib/python*/site-packages/{name}-*.dist-info"))


def _is_everything(requirements: Sequence[str]) -> bool:
    return any(requirement.partition("[")[0] == "tpuserve" for requirement in requirements)


def _in_home(prefix: Path) -> Path:
    home = Path.home()
    return Path("~", prefix.relative_to(home)) if prefix.is_relative_to(home) else prefix


def _step(text: str) -> None:
    sys.stdout.write(f"== {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
