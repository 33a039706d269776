"""Draw p99 and goodput over the load from a run of objective_live.py. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from style import INK, plt, save

COLOURS = {"objective": "#3b82d6", "greedy": "#e0823d"}
# Cut the axis here: a queue that grows without limit would flatten all other values.
_MOST_OBJECTIVES = 4


def main(figures: Path, picture: Path) -> None:
    found = json.loads(figures.read_text())
    figure, (latency, goodput) = plt.subplots(1, 2, figsize=(10, 4))
    objective_ms, capacity = found["objective_ms"], found["capacity_per_s"]
    _lines(latency, found["steps"], "p99_ms")
    latency.axhline(objective_ms, color=INK, linestyle="--", linewidth=1)
    latency.annotate(f"objective {objective_ms:g} ms", (10, objective_ms), xytext=(0, 4), textcoords="offset points")
    latency.set_ylim(0, _MOST_OBJECTIVES * objective_ms)
    latency.set_title(
        f"p{found['percentile']} latency, ms (axis ends at {_MOST_OBJECTIVES * objective_ms:g})", fontsize=10
    )
    _lines(goodput, found["steps"], "goodput_per_s")
    goodput.plot([0, 100, 200], [0, capacity, capacity], color=INK, linestyle="--", linewidth=1)
    goodput.annotate(
        "load, up to the capacity",
        (55, 0.55 * capacity),
        xytext=(0, 14),
        textcoords="offset points",
        ha="right",
    )
    goodput.set_ylim(0)
    goodput.set_title(f"responses within {objective_ms:g} ms, per second", fontsize=10)
    for axes in (latency, goodput):
        axes.set_xlabel("load, % of capacity")
        axes.set_xlim(0, 205)
    handles, labels = goodput.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, picture)


def _lines(axes: Axes, steps: list[dict[str, Any]], value: str) -> None:
    for mode, colour in COLOURS.items():
        own = [step for step in steps if step["mode"] == mode]
        loads, values = [step["load_percent"] for step in own], [step[value] for step in own]
        axes.plot(loads, values, color=colour, marker="o", markersize=4, label=f"{mode} mode")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
