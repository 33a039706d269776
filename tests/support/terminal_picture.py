"""Pictures of a command in a terminal: runs it in a pseudoterminal, and draws its screen as an SVG with text."""

import os
import pty
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS: Final = 112
# The cursor movements of rich: up a line, and back to rewrite a line.
_MOVES: Final = re.compile(r"(\n|\x1b\[1A|\x1b\[2K|\r|\x1b\[\?25[lh])")


def run_in_terminal(command: list[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a command in a terminal with COLUMNS columns, and return all that it writes. Asserts exit code 0.

    `variables` are added to this process's environment.
    """
    ours, theirs = pty.openpty()
    # Set TensorFlow's log level: training in this process set it up only here.
    terminal = {"TF_CPP_MIN_LOG_LEVEL": "3", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    environment = {**os.environ, **terminal, **variables}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
    os.close(ours)
    written = b"".join(parts).decode()
    assert process.returncode == 0, written
    return written


def settle(written: str) -> str:
    """Return the lines on the screen after the output."""
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


def draw_terminal(text: str, to: Path, title: str) -> None:
    """Draw `text`, which may have ANSI colours, as a terminal with a title."""
    with open(os.devnull, "w") as nowhere:
        console = Console(width=COLUMNS, record=True, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text), soft_wrap=False)
    # Remove the downloaded fonts. The reader's fonts suffice.
    to.write_text(re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title=title, theme=MONOKAI), flags=re.S))
