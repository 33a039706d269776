"""Versions of the packages that tpuserve's distributions require, from the locks, as constraints of pip.

The constraints have no hashes: pip would then also require hashes of every package that the user adds.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The locks of what users install. That of development has most extras. The lock of GPUs is not here: JAX and PyTorch
# require different versions of NVIDIA's libraries, and name them exactly.
_LOCKS: Final = ("dev", "server", "pjrt", "exporter", "client", "loadtests", "tpu", "ray", "torch")
# Packages whose pinned version excludes Python 3.11. uv ignores upper bounds of Requires-Python, but pip refuses them.
_REFUSED_BY_PIP: Final = frozenset({"backports-strenum"})
_PIN: Final = re.compile(r"^([\w.-]+)==(\S+?)(?:\+\w+)?( ; .*?)?(?: \\)?\n((?:[ #].*\n)*)", re.MULTILINE)
_HEAD: Final = "# Versions with which tpuserve was tested, from requirements/. `make wheels` writes this file.\n"


def read_constraints(directory: Path) -> str:
    """Return the constraints from the locks in a directory: a line for each version of each package.

    Omits the packages that only the development requires, and those for which two locks have different versions, such
    as libtpu: the device decides which one pip installs. It also omits versions that pip refuses. PyTorch's CPU build
    has the version of the other builds.
    """
    versions: dict[str, set[str]] = {}
    free = set(_REFUSED_BY_PIP)
    lines = set()
    for lock in _LOCKS:
        found: dict[str, set[str]] = {}
        for name, version, marker in _pins((directory / f"{lock}.lock").read_text(encoding="utf-8")):
            found.setdefault(name, set()).add(version)
            lines.add((name, f"{name}=={version}{marker}\n"))
        free |= {name for name in found.keys() & versions.keys() if found[name] != versions[name]}
        versions |= found
    return _HEAD + "".join(line for name, line in sorted(lines) if name not in free)


def _pins(lock: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, version and marker of each package that a distribution or another such package requires."""
    pins = [(pin[1], pin[2], pin[3] or "", _parents(pin[4])) for pin in _PIN.finditer(lock)]
    wanted: set[str] = set()
    while True:
        more = {name for name, _, _, parents in pins if any(_is_ours(each) or each in wanted for each in parents)}
        if more <= wanted:
            break
        wanted |= more
    yield from ((name, version, marker) for name, version, marker, _ in pins if name in wanted)


def _parents(comments: str) -> set[str]:
    lines = (line.strip(" #") for line in comments.splitlines() if line.strip().startswith("#"))
    return {line.removeprefix("via ") for line in lines}


def _is_ours(parent: str) -> bool:
    """Return whether the lock names a distribution, or a file of requirements that stands for one of its extras."""
    return parent.startswith(("tpuserve-", "-r ")) and not parent.startswith("tpuserve-workspace ")
