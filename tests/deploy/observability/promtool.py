"""The real promtool of Debian's package prometheus."""

import subprocess
from pathlib import Path


def run_promtool(*arguments: str | Path) -> str:
    """Return promtool's output. Fails if its status is not 0."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
