"""How charts look: SVG without a background, in ink that is legible on white and on black."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["INK", "plt", "save"]

INK = "#7d8590"
mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        # The same figures give the same file.
        "svg.hashsalt": "tpuserve",
        "font.family": "sans-serif",
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def save(figure: Figure, picture: Path) -> None:
    """Write the picture, without the date, so that nothing but its figures changes it."""
    figure.savefig(picture, transparent=True, metadata={"Date": None})
    # matplotlib ends lines with blanks, which no file here has.
    picture.write_text("".join(f"{line.rstrip()}\n" for line in picture.read_text().splitlines()))
