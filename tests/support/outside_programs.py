"""Programs that tests start and `make setup` does not install.

Where such a program is missing, its tests skip and name the Debian package. Where CI is true, they run and fail.
"""

import os
import shutil

import pytest

# program -> Debian package
PACKAGES = {"curl": "curl", "h2load": "nghttp2-client", "setpriv": "util-linux", "wrk": "wrk"}


def missing(*programs: str) -> str:
    """Return why tests of these programs skip here, or "" where they run."""
    absent = [PACKAGES[program] for program in programs if shutil.which(program) is None]
    if not absent or os.environ.get("CI"):
        return ""
    return f"needs apt-get install {' '.join(absent)}"


def needs(*programs: str) -> pytest.MarkDecorator:
    """Mark tests that start these programs."""
    reason = missing(*programs)
    return pytest.mark.skipif(bool(reason), reason=reason)
