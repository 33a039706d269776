"""Optional dependencies of tests: without them tests skip with a reason, or fail in CI.

In CI, a missing dependency must not look like a pass.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

# Programs that tests start and `make setup` does not install, and their Debian packages.
PACKAGES = {
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "curl": "curl",
    "h2load": "nghttp2-client",
    "mmdebstrap": "mmdebstrap",
    "node": "nodejs npm",
    "podman": "podman",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "runc": "runc",
    "setpriv": "util-linux",
    "wrk": "wrk",
}
_ROOT = Path(__file__).parents[2]
_TORCH = _ROOT / ".torch"
_RAY = _ROOT / ".ray"
_OIP_CLIENTS = _ROOT / ".oip-clients"


def in_ci() -> bool:
    """Return whether this is CI, where a skipped test would be a gap. `.ci/run` and similar scripts set CI."""
    return bool(os.environ.get("CI"))


def skip_unless(is_there: object, reason: str) -> pytest.MarkDecorator:
    """Mark tests that skip if a dependency is missing, except in CI."""
    return pytest.mark.skipif(not is_there and not in_ci(), reason=reason)


def cannot_run(reason: str) -> NoReturn:
    """Skip the running test, or fail it in CI."""
    if in_ci():
        pytest.fail(f"In CI this must run: {reason}")
    pytest.skip(reason)


def missing(*programs: str) -> str:
    """Return why tests of these programs skip here, or "" if they run."""
    absent = dict.fromkeys(PACKAGES[program] for program in programs if shutil.which(program) is None)
    return f"needs apt-get install {' '.join(absent)}" if absent and not in_ci() else ""


def needs(*programs: str) -> pytest.MarkDecorator:
    """Mark tests that start these programs."""
    reason = missing(*programs)
    return skip_unless(not reason, reason)


def find_torch() -> Path | None:
    """Return the directory of the programs of `.torch`, or None if the installation is incomplete.

    `make torch` writes `.installed` last. An interrupted installation has a Python without packages.
    """
    return _TORCH / "bin" if (_TORCH / ".installed").exists() else None


def find_ray() -> Path | None:
    """Return the Python interpreter with Ray Serve, or None if `make ray` has not completed."""
    return _RAY / "bin" / "python" if (_RAY / ".installed").exists() else None


def find_oip_clients() -> Path | None:
    """Return the Python interpreter with tritonclient and kserve, or None if `make oip-clients` has not completed."""
    return _OIP_CLIENTS / "bin" / "python" if (_OIP_CLIENTS / ".installed").exists() else None
