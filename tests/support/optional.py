"""What a machine may lack: tests of it skip there with a reason. Where CI is true, they run and fail.

In CI a gap must not look like a pass.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

# Programs that tests start and `make setup` does not install, and their Debian packages.
PACKAGES = {"curl": "curl", "h2load": "nghttp2-client", "setpriv": "util-linux", "wrk": "wrk"}
_TORCH = Path(__file__).parents[2] / ".torch"


def in_ci() -> bool:
    """Whether a skipped test would be a gap: `.ci/run` and its likes set CI."""
    return bool(os.environ.get("CI"))


def skip_unless(is_there: object, reason: str) -> pytest.MarkDecorator:
    """Mark tests that skip where something is missing, except in CI."""
    return pytest.mark.skipif(not is_there and not in_ci(), reason=reason)


def cannot_run(reason: str) -> NoReturn:
    """Skip the test that is running; in CI, fail it."""
    if in_ci():
        pytest.fail(f"In CI this must run: {reason}")
    pytest.skip(reason)


def missing(*programs: str) -> str:
    """Return why tests of these programs skip here, or "" where they run."""
    absent = [PACKAGES[program] for program in programs if shutil.which(program) is None]
    return f"needs apt-get install {' '.join(absent)}" if absent and not in_ci() else ""


def needs(*programs: str) -> pytest.MarkDecorator:
    """Mark tests that start these programs."""
    reason = missing(*programs)
    return skip_unless(not reason, reason)


def find_torch() -> Path | None:
    """The folder of the programs of `.torch`; None where it is not whole.

    `make torch` writes `.installed` last: an installation that broke off has a Python without packages.
    """
    return _TORCH / "bin" if (_TORCH / ".installed").exists() else None
