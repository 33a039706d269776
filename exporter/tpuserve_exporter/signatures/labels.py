"""The names of a model's classes: a text file with one name a line, in the order of the scores."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tpuserve_exporter.errors import OptionConflict

# The file in a version, for clients that receive only scores.
LABELS_FILE = Path("assets.extra/labels.txt")


def write_labels(version: Path, labels: Sequence[str]) -> None:
    """Write the labels into a version directory. Without labels, write no file."""
    if labels:
        path = version / LABELS_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")


def read_labels(path: Path | None) -> tuple[str, ...]:
    """Return the lines of the file without surrounding spaces, or () without a file.

    Raises OptionConflict for a file that is not text, is empty, has an empty line, or repeats a name.
    """
    if path is None:
        return ()
    try:
        lines = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionConflict(f"--labels: cannot read {path.name} as text: {error}") from error
    if not lines:
        raise OptionConflict(f"--labels: {path.name} is empty. Write one class per line")
    for number, line in enumerate(lines, start=1):
        if not line:
            raise OptionConflict(f"--labels: line {number} of {path.name} is empty")
    repeated = [name for name, count in Counter(lines).items() if count > 1]
    if repeated:
        raise OptionConflict(f"--labels: {repeated[0]!r} occurs {Counter(lines)[repeated[0]]} times in {path.name}")
    return lines
