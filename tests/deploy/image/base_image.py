"""A base image of the Debian packages that this machine's apt can install, because no image registry is needed then."""

import subprocess
from pathlib import Path

# The Dockerfile's base image has these. usr-is-merged replaces usrmerge, which needs 46 MB of Perl.
_PACKAGES = "ca-certificates,libpython3-dev,python3,python3-venv,usr-is-merged"
_MERGED = "--hook-directory=/usr/share/mmdebstrap/hooks/merged-usr"
_RELEASE = "bookworm"
# The Dockerfile's base image omits these too.
_WITHOUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "*.a")


def write_base(archive: Path) -> None:
    """Write a Debian 12 with Python 3.11 as an archive, from the mirror and with the proxies of this machine's apt.

    Raises:
        RuntimeError: The packages cannot be installed. The message contains the last line of the error.
    """
    write_debian(archive, _RELEASE, _PACKAGES, _MERGED)


def write_debian(to: Path, release: str, packages: str, *options: str) -> None:
    """Write a release of Debian as an archive or a directory. `packages` are separated by commas.

    Raises:
        RuntimeError: The packages cannot be installed. The message contains the last line of the error.
    """
    options += ("--aptopt=APT::Install-Recommends false",)
    options += tuple(f"--aptopt={line}" for line in _output("apt-config", "dump").splitlines() if _is_of_proxy(line))
    options += tuple(f"--dpkgopt=path-exclude={path}" for path in _WITHOUT)
    command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", *options, release, str(to), _mirror()]
    made = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        lines = made.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"mmdebstrap exited with status {made.returncode}: {lines[-1]}")


def _is_of_proxy(line: str) -> bool:
    return line.startswith(("Acquire::http::", "Acquire::https::"))


def _mirror() -> str:
    """Return the first mirror of Debian that apt knows."""
    listed = _output("apt-get", "indextargets", "--format", "$(LABEL) $(COMPONENT) $(REPO_URI)")
    mirrors = [line.split()[2] for line in listed.splitlines() if line.split()[:2] == ["Debian", "main"]]
    if not mirrors:
        raise RuntimeError("apt knows no mirror of Debian: apt-get update")
    return mirrors[0]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
