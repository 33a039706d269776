"""git for tests, with an identity for commits."""

import os
import subprocess
from pathlib import Path

IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "test"), ("EMAIL", "test@localhost"))
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return its output. Raises CalledProcessError."""
    environment = {**os.environ, **IDENTITY}
    run = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env=environment
    )
    return run.stdout.strip()
