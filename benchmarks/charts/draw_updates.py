"""Draw the memory of a server over ten updates, from updates.py --json. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from pathlib import Path

from style import INK, plt, save

COLOURS = ("#3b82d6", "#e0823d")


def main(figures: Path, picture: Path) -> None:
    found = json.loads(figures.read_text())
    figure, axes = plt.subplots(figsize=(8, 4))
    for each, colour in zip(found, COLOURS, strict=True):
        updates = range(len(each["loads"]))
        axes.plot(
            updates,
            [load["rss_mb"] for load in each["loads"]],
            color=colour,
            marker="o",
            markersize=4,
            label=f"{each['name']}, after the update",
        )
        axes.plot(
            updates,
            [load["peak_mb"] for load in each["loads"]],
            color=colour,
            linestyle="--",
            linewidth=1,
            label=f"{each['name']}, peak during the update",
        )
    weights_mb = found[0]["weights_mb"]
    for times, name in ((1, "weights"), (2, "weights of two versions")):
        axes.axhline(times * weights_mb, color=INK, linestyle=":", linewidth=1)
        axes.annotate(
            name,
            (len(found[0]["loads"]) - 1, times * weights_mb),
            xytext=(0, -12),
            ha="right",
            textcoords="offset points",
        )
    axes.set_ylim(0)
    axes.set_xlabel("update")
    axes.set_title("memory of the server, MB", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=2, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    save(figure, picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
