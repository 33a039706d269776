"""Fails a test run whose branch coverage of the formats or of the server's inner layers is below the floor.

Run it after pytest, in the directory that contains ``.coverage``: ``python tests/coverage_floor.py``.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from coverage import Coverage
from coverage.exceptions import CoverageException

LAYERS = {
    "formats": "formats/tpuserve_formats",
    **{layer: f"server/tpuserve_server/{layer}" for layer in ("core", "wire", "protocols", "hosts")},
}
FLOOR_PERCENT = 90.0


class Summary(TypedDict):
    """The fields used here of a file's entry in coverage's JSON report."""

    num_branches: int
    covered_branches: int


@dataclass(frozen=True, slots=True)
class Branches:
    """Numbers of covered branches and of all branches."""

    covered: int = 0
    total: int = 0

    def __add__(self, other: "Branches") -> "Branches":
        return Branches(self.covered + other.covered, self.total + other.total)

    @property
    def percent(self) -> float:
        """Covered percentage. Zero without branches, so that a layer missing from the data fails."""
        return 100.0 * self.covered / self.total if self.total else 0.0


def branches_by_layer(files: Mapping[str, Summary]) -> dict[str, Branches]:
    """Sum the branches of each layer, and of all of them under ``together``.

    Args:
        files: path relative to the repository → that file's summary.
    """
    sums = {layer: Branches() for layer in LAYERS}
    for path, summary in files.items():
        for layer, folder in LAYERS.items():
            if Path(path).is_relative_to(folder):
                sums[layer] += Branches(summary["covered_branches"], summary["num_branches"])
    return sums | {"together": sum(sums.values(), Branches())}


def read_files() -> dict[str, Summary]:
    """Read ``.coverage`` of the current directory.

    Raises:
        CoverageException: there is no data, or a measured file is missing.
    """
    coverage = Coverage()
    coverage.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        coverage.json_report(outfile=str(report))
        return {path: entry["summary"] for path, entry in json.loads(report.read_text())["files"].items()}


def main() -> int:
    """Print the table. Return the exit status: 0, or 1 if a row is below the floor or the data cannot be read."""
    try:
        sums = branches_by_layer(read_files())
    except CoverageException as error:
        print(f"Branch coverage cannot be read: {error}", file=sys.stderr)
        return 1
    print(f"\nBranch coverage, floor {FLOOR_PERCENT:g} %")
    for layer, branches in sums.items():
        verdict = "ok" if branches.percent >= FLOOR_PERCENT else "BELOW THE FLOOR"
        print(f"  {layer:<10} {branches.covered:>5} of {branches.total:>5} {branches.percent:>6.1f} %  {verdict}")
    return int(any(branches.percent < FLOOR_PERCENT for branches in sums.values()))


if __name__ == "__main__":
    sys.exit(main())
