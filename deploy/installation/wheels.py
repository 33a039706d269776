"""`python -m deploy.installation.wheels DIRECTORY`: build the wheel of every distribution, and constraints.txt.

`make wheels` runs it. It needs only uv: requirements/bootstrap.lock.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

from deploy.installation.constraints import read_constraints

ROOT: Final = Path(__file__).parents[2]
UV: Final = ROOT / ".venv/bin/uv"
CONSTRAINTS: Final = "constraints.txt"


def build_wheels(directory: Path) -> list[Path]:
    """Build the wheels of all members of the workspace into a directory, and return them. Needs no network.

    Removes older wheels, which pip would prefer if their version is higher.

    Raises:
        subprocess.CalledProcessError: uv failed. It has printed the reason.
    """
    for old in directory.glob("tpuserve*.whl"):
        old.unlink()
    command = (UV, "build", "--all-packages", "--quiet", "--offline", "--wheel", "--out-dir", directory.resolve())
    subprocess.run(command, cwd=ROOT, check=True)
    (directory / CONSTRAINTS).write_text(read_constraints(ROOT / "requirements"), encoding="utf-8")
    return sorted(directory.glob("tpuserve*.whl"))


if __name__ == "__main__":
    made = build_wheels(Path(sys.argv[1]))
    sys.stdout.writelines(f"{path}\n" for path in (*made, Path(sys.argv[1], CONSTRAINTS)))
