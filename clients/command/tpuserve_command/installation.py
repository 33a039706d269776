"""Check that all of tpuserve's distributions in this environment have one version.

They share private packages, so a mixture fails later, with an error that names no cause. pip leaves one after `pip
install --upgrade` of a single distribution.
"""

import os
import re
import sys
from collections.abc import Iterable

EXIT_MIXED = 2
DISTRIBUTIONS = (
    "tpuserve", "tpuserve-client", "tpuserve-command", "tpuserve-exporter", "tpuserve-formats", "tpuserve-loadtests",
    "tpuserve-server",
)  # fmt: skip
# The directory of a distribution's metadata. importlib.metadata, which reads the same names, takes 80 ms to import.
_METADATA = re.compile(rf"({'|'.join(DISTRIBUTIONS).replace('-', '_')})-([^-]+)\.dist-info")


def refuse_mixed_installation() -> None:
    """Exit with code 2 and the command that installs one version, if the versions differ."""
    versions = installed_versions(sys.path)
    if len(set(versions.values())) > 1:
        sys.stderr.write(f"Error: {mixed_message(versions)}\n")
        sys.exit(EXIT_MIXED)


def installed_versions(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of tpuserve's distributions by name, from the first directory of the path that has each."""
    versions: dict[str, str] = {}
    for directory in path:
        try:
            names = os.listdir(directory or ".")
        except OSError:  # an archive, or a directory that does not exist
            continue
        for name in sorted(names):
            if found := _METADATA.fullmatch(name):
                versions.setdefault(found[1].replace("_", "-"), found[2])
    return versions


def mixed_message(versions: dict[str, str]) -> str:
    """Describe the mixture, and name the command that installs the newest version of every distribution."""
    newest = max(versions.values(), key=_release)
    older = {name: version for name, version in versions.items() if version != newest}
    listed = ", ".join(f"{name} {version}" for name, version in sorted(older.items()))
    others = ", ".join(sorted(versions.keys() - older.keys()))
    requirements = " ".join(f"{name}=={newest}" for name in sorted(versions))
    return (
        f"tpuserve's packages in this environment have several versions: {listed}, but {others} {newest}. Run: "
        f"{sys.executable} -m pip install {requirements}"
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
