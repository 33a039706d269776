"""`python -m tests.structure`: a table of the code's size, and of what a request passes."""

import json
import tempfile
from pathlib import Path

import click

from tests.deploy.dockerfile import ROOT
from tests.structure.counts import Counts
from tests.structure.passage import measure

PACKAGES = {
    "server": "server/tpuserve_server",
    "exporter": "exporter/tpuserve_exporter",
    "loadtests": "loadtests/tpuserve_loadtests",
}


@click.command(
    epilog="\b\nExamples:\n  python -m tests.structure\n  python -m tests.structure --before ../parent --json"
)
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(before: Path | None, as_json: bool) -> None:
    """Count the modules, classes and functions of each distribution, and the code that a request passes."""
    table: dict[str, dict[str, list[int | float]]] = {}
    for name, path in PACKAGES.items():
        columns = [Counts(root / path).rows() for root in (before, ROOT) if root is not None]
        table[name] = {row: [column[row] for column in columns] for row in columns[0]}
    with tempfile.TemporaryDirectory() as folder:
        passed = measure(Path(folder))
    table["files that a request passes"] = {name: [files] for name, (files, _) in passed.items()}
    table["functions that a request passes"] = {name: [functions] for name, (_, functions) in passed.items()}
    click.echo(json.dumps(table, indent=2) if as_json else _text(table))


def _text(table: dict[str, dict[str, list[int | float]]]) -> str:
    lines = []
    for title, rows in table.items():
        lines += ["", title]
        lines += [f"  {name:40}{''.join(f'{value:>12,}' for value in values)}" for name, values in rows.items()]
    return "\n".join(lines[1:])


if __name__ == "__main__":
    main()
