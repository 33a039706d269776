"""`python -m tests.loadtests.truth [PATTERN...]`: print what `tpuserve loadtest` reports next to the server's log.

Prints a row for each load shape and behaviour, or for those whose name matches a pattern. A cell `said/true` has the
reported figure and that of the log. With --check, the exit status is 1 if a row is WRONG.
"""

import argparse
import fnmatch
import sys
import tempfile
from pathlib import Path

from tests.loadtests.truth import cases, commands
from tests.loadtests.truth.table import print_table
from tests.loadtests.truth.tester import TAKES, measure, settle


def main() -> int:
    """Run the rows and print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.loadtests.truth", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of rows, such as 'closed*'")
    parser.add_argument(
        "--patience",
        type=int,
        default=TAKES,
        metavar="N",
        help="runs of a row on a busy machine (default: %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row is WRONG")
    options = parser.parse_args()

    def is_wanted(name: str) -> bool:
        return not options.patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in options.patterns)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [measure(case, folder, options.patience) for case in cases.EVERY if is_wanted(case.name)]
        for title, attempt in commands.named(folder).items():
            if is_wanted(title):
                rows += settle(title, attempt, options.patience)
    print_table(rows)
    return int(options.check and not all(row.is_right for row in rows))


if __name__ == "__main__":
    sys.exit(main())
