"""Third-party models through all steps: save, export, serve, predict, and compare with the source's own outputs.

    make strangers                               # all models: minutes
    make strangers ONLY=MobileNetV2,'tf1_*'      # some, by name or pattern

Prints a line for each model, source, signature and protocol. A difference beyond the tolerance, or an unexpected
refusal, makes a line WRONG and the exit status 1. Ctrl-C stops every process and prints the lines so far, with exit
status 130. Sources, versions and logs are in .demo/strangers, which only one run can use at a time.
"""

import argparse
import fnmatch
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.strangers.catalogue.groups import GROUPS
from tests.strangers.line import Line, Verdict
from tests.strangers.processes import ROOT
from tests.strangers.run import run
from tests.strangers.stranger import Stranger
from tests.strangers.table import print_table, write_json
from tests.strangers.work_folder import InUse, hold

# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 200
# The status that shells report for SIGINT.
EXIT_INTERRUPTED = 130
# Largest number of concurrent exports. Each needs up to 2 GB.
MOST_JOBS = 4


def main(arguments: Sequence[str], groups: Sequence[Sequence[Stranger]] = GROUPS) -> int:
    """Run the strangers that the command line names. Returns the exit status."""
    options = _parse(arguments)
    patterns = [one.strip() for one in options.only.split(",") if one.strip()] or ["*"]
    names = [one.name for group in groups for one in group]
    unknown = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    if unknown:
        print(f"Unknown model {', '.join(unknown)}. The models are {', '.join(names)}.", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(names))
        return 0
    selected = [
        [one for one in group if any(fnmatch.fnmatchcase(one.name, each) for each in patterns)] for group in groups
    ]
    try:
        with hold(options.work):
            return _run(selected, options)
    except InUse as error:
        print(f"{error} Wait until it ends, or choose another directory with --work.", file=sys.stderr)
        return 2


def _run(groups: Sequence[Sequence[Stranger]], options: argparse.Namespace) -> int:
    """Run the groups, print the table and return the exit status."""
    started_s = time.monotonic()
    lines: list[Line] = []
    reports = {one.name: one.report for group in groups for one in group if one.report}
    interrupted = False

    def report(step: str) -> None:
        print(f"[{time.monotonic() - started_s:6.1f} s] {step}", file=sys.stderr, flush=True)

    try:
        # Add each line when it arrives, so that an interrupt keeps the lines so far.
        lines.extend(run([group for group in groups if group], options.work, options.jobs, report))
    except KeyboardInterrupt:
        interrupted = True
    seconds = time.monotonic() - started_s
    print_table(Console(width=None if sys.stdout.isatty() else LOG_WIDTH), lines, seconds, reports)
    status = EXIT_INTERRUPTED if interrupted else int(any(line.verdict is Verdict.WRONG for line in lines))
    if options.json:
        write_json(options.json, lines, seconds, reports, ok=status == 0)
    if interrupted:
        report("interrupted: all processes have stopped, and the table contains the lines so far")
    return status


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("strangers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", default="", metavar="NAME,…", help="Comma-separated names or patterns of models (default: all)."
    )
    parser.add_argument("--list", action="store_true", help="Print the names and exit.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write the lines to this file, too.")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / ".demo/strangers",
        help="Directory for sources, versions and logs (default: .demo/strangers).",
    )
    jobs = min(MOST_JOBS, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, help=f"Number of concurrent exports (default: {jobs}).")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Treat SIGTERM like Ctrl-C, so that the run also stops its processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
