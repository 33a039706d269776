"""`python -m deploy.supply.audit [--if-reachable] [LOCK...]`: look up the locked packages in a vulnerability database.

pip-audit asks OSV's database, or another one with its API at $PIP_AUDIT_OSV_URL. A service that answers, but knows
nothing, would let every package pass. Therefore the command first looks up an old release with known vulnerabilities.

Exit codes: 0 no vulnerability is known, 1 some are, 2 usage or a broken installation, 3 not checked: no service. With
--if-reachable, the command prints NOT CHECKED and exits with 0 in the last case.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# The environment of `make audit`.
PIP_AUDIT: Final = ROOT / ".audit/bin/pip-audit"
_NOT_CHECKED: Final = 3
_IF_REACHABLE: Final = "--if-reachable"
# CVE-2014-1402 and later ones.
_CANARY: Final = "jinja2==2.4.1"
_TIMEOUT_S: Final = 15


def main(arguments: Sequence[str]) -> int:
    """Audit the locks with these names, by default all, and return the exit code."""
    names = [name for name in arguments if name != _IF_REACHABLE]
    if not PIP_AUDIT.exists():
        sys.stderr.write("pip-audit is not installed. Run: make audit\n")
        return 2
    locks = [ROOT / f"requirements/{name}.lock" for name in names] or sorted((ROOT / "requirements").glob("*.lock"))
    if missing := [lock.name for lock in locks if not lock.exists()]:
        sys.stderr.write(f"There is no requirements/{missing[0]}.\n")
        return 2
    if reason := _why_useless():
        sys.stdout.write(f"NOT CHECKED for vulnerabilities: {reason}. Run `make audit` with Internet access.\n")
        return 0 if _IF_REACHABLE in arguments else _NOT_CHECKED
    failed = 0
    for lock in locks:
        sys.stdout.write(f"{lock.name}: ")
        sys.stdout.flush()
        failed |= _audit(lock).returncode != 0
    return int(failed)


def _why_useless() -> str:
    """Return why the service cannot judge packages, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder, "requirements.txt")
        canary.write_text(f"{_CANARY}\n", encoding="utf-8")
        asked = _audit(canary, "--format=json")
    try:
        [found] = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = asked.stderr.strip().splitlines()
        return f"the service does not respond ({lines[-1].partition(': ')[0] if lines else 'no reason'})"
    return "" if found.get("vulns") else f"the service knows no vulnerability of {_CANARY}"


def _audit(requirements: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pip-audit without pip, because the requirements are complete. Without options it prints a table itself."""
    command = [str(PIP_AUDIT), "--vulnerability-service=osv", f"--timeout={_TIMEOUT_S}", "--progress-spinner=off"]
    return subprocess.run(
        [*command, "--disable-pip", "--no-deps", f"--requirement={requirements}", *options],
        check=False,
        capture_output=bool(options),
        text=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
