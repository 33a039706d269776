"""Style of the charts: SVG without a background, with colours that are legible on white and on black."""

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
        # Makes the file reproducible.
        "svg.hashsalt": "tpuserve",
        "font.family": "sans-serif",
        "font.size": 10,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def save(figure: Figure, picture: Path) -> None:
    """Write the image without a date, so that only its figures change it."""
    figure.savefig(picture, transparent=True, metadata={"Date": None})
    # Strip the trailing blanks that matplotlib writes.
    picture.write_text("".join(f"{line.rstrip()}\n" for line in picture.read_text().splitlines()))
