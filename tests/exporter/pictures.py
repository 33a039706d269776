"""`python -m tests.exporter.pictures`: make docs/images/export-*.{png,svg} from a real export of an example.

They show the terminal output as text, and the report page in a browser in light and dark mode.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.support.browser import open_browser

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
COMMAND = (
    "export checkpoints models/text --model examples.text_classifier.model:build --sequence-buckets 8,16,32 "
    "--signature serving_default=tensor --signature examples=tf_example --serve-check --report report.html"
)
_COLUMNS = 112
# The maximum height of the page's image, in CSS pixels.
_HEIGHT = 1500
# The cursor movements of rich: up a line, and back to rewrite a line.
_MOVES = re.compile(r"(\n|\x1b\[1A|\x1b\[2K|\r|\x1b\[\?25[lh])")


def main() -> None:
    from examples.text_classifier.train import train

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # the browser writes files until it has ended
        folder = Path(name)
        train(folder / "checkpoints")
        shown = run_in_terminal([str(Path(sys.executable).with_name("tpuserve")), *COMMAND.split()], folder)
        draw_terminal(f"$ tpuserve {COMMAND}\n{shown}", IMAGES / "export-terminal.svg")
        with open_browser(folder / "profile") as browser:
            for scheme in ("light", "dark"):
                browser.open(folder / "report.html", 1100, scheme)
                browser.take_picture(IMAGES / f"export-report-{scheme}.png", _HEIGHT)


def run_in_terminal(command: list[str], folder: Path) -> str:
    """Return the final screen of a terminal with _COLUMNS columns."""
    ours, theirs = pty.openpty()
    # Set TensorFlow's log level: training in this process set it up only here.
    environment = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS),
        # The command runs in a separate directory and imports the examples of this checkout.
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
    os.close(ours)
    assert process.returncode == 0, b"".join(parts).decode()
    return settle(b"".join(parts).decode())


def settle(written: str) -> str:
    """Return the lines that remain on the screen after all output."""
    lines, row = [""], 0
    for part in _MOVES.split(written):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif _MOVES.fullmatch(part) is None:
            lines[row] += part
    return "\n".join(lines)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux reports the end of a terminal as EIO
        return b""


def draw_terminal(text: str, to: Path) -> None:
    with open(os.devnull, "w") as nowhere:
        console = Console(width=_COLUMNS, record=True, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text), soft_wrap=False)
    # Remove the downloaded fonts. The reader's fonts suffice.
    to.write_text(
        re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title="tpuserve export", theme=MONOKAI), flags=re.S)
    )


if __name__ == "__main__":
    main()
