"""A machine of stub programs, for the scripts in .ci/."""

import os
import stat
import subprocess
from pathlib import Path


class Machine:
    """A directory of stub programs that is first on PATH, and a record of their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        self.program("id", "echo 0")

    def program(self, name: str, body: str = "") -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{self.calls}"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def called(self, name: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.startswith(name)]

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(self.folder), "TMPDIR": str(self.folder)}

    def run(self, script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *arguments],
            cwd=self.folder,
            env=self.environment() | variables,
            input="typed",
            capture_output=True,
            text=True,
            check=False,
        )
