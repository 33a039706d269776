"""`python -m tests.installs.table`: measure every installation, and write the table of docs/how-to/install.md.

Downloads several GB for the large extras.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.installs.catalogue import INSTALLATIONS, Installation
from tests.installs.environments import Environments
from tests.support.wheels import ROOT

PAGE = ROOT / "docs/how-to/install.md"
BEGIN = "<!-- Measurements make this table: python -m tests.installs.table -->\n"
END = "<!-- End of the table of installations -->\n"
HEAD = "| install | adds | MB | import, ms |\n|---|---|---|---|\n"


def written_table(page: str) -> str:
    """Return the page's table."""
    return page.partition(BEGIN)[2].partition(END)[0]


def write_table(page: str, rows: Iterable[str]) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{HEAD}{''.join(rows)}{END}{rest.partition(END)[2]}"


def cells(installation: Installation) -> str:
    """Return the first two cells of an installation's row."""
    return f"| `{installation.requirement}` | {installation.adds} "


def measure(environments: Environments) -> Iterator[str]:
    """Yield the row of each installation. The size of an extra is the difference to its distribution's size."""
    base_bytes = 0
    for installation in INSTALLATIONS:
        environment = environments.make(installation.requirement)
        size_bytes = environment.size_bytes()
        import_ms = environment.import_ms(installation.statement)
        base_bytes = base_bytes if installation.extra else size_bytes
        size = f"+{(size_bytes - base_bytes) / 1e6:,.0f}" if installation.extra else f"{size_bytes / 1e6:,.0f}"
        row = f"{cells(installation)}| {size} | {import_ms:,.0f} |\n"
        print(row, end="", flush=True)
        environments.remove(installation.requirement)
        yield row


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tpuserve-installs-") as folder:
        PAGE.write_text(write_table(PAGE.read_text(), list(measure(Environments(Path(folder))))))
