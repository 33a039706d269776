"""`make fuzz`: runs the targets one after the other, prints a table, and ends with status 1 after a finding."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.outcome import Outcome, table
from tests.fuzz.sessions import SESSIONS, Folders
from tests.fuzz.targets import CORPUS, PARSERS

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}


def main(arguments: list[str]) -> int:
    """Run the targets that `arguments` name, or all of them."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="time of each target")
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"), help="folder of new inputs and findings")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"any of {', '.join(SESSIONS)}")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.targets if name not in SESSIONS]:
        parser.error(f"unknown target {unknown[0]}. Targets are {', '.join(SESSIONS)}")
    outcomes = [_run(name, round(given.minutes * 60), given.kept) for name in given.targets or SESSIONS]
    print(table(outcomes))
    found = [outcome.target for outcome in outcomes if outcome.finding]
    for name in found:
        print(f"\n{name}: see {given.kept / name / 'log'}. {_how_to_replay(name, given.kept / name / 'findings')}")
    return 1 if found else 0


def _run(name: str, seconds: int, kept: Path) -> Outcome:
    print(f"{name}: {seconds} s", flush=True)
    folder = kept / name
    at = Folders(folder / "corpus", folder / "findings", folder / "counts")
    for path in (at.kept, at.findings):
        path.mkdir(parents=True, exist_ok=True)
    at.counts.unlink(missing_ok=True)
    start_s = time.monotonic()
    with (folder / "log").open("wb") as log:
        command = SESSIONS[name](seconds, at)
        status = subprocess.run(command, stdout=log, stderr=log, env={**os.environ, **_QUIET}, check=False).returncode
    return Outcome.read(name, time.monotonic() - start_s, status, folder / "log", at.counts)


def _how_to_replay(name: str, findings: Path) -> str:
    if name in PARSERS:
        return (
            f"Copy its newest input from {findings} to {CORPUS.relative_to(Path.cwd()) / name} under a name that says "
            f"what it is, and run: .venv/bin/python -m pytest tests/fuzz/test_corpus.py -k {name}"
        )
    return f"{findings} has the seeds of its rounds: see the docstring of the session's module."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
