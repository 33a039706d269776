"""Draw the goodput over the load, simulated and live, from overload_live.py. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from style import INK, plt, save

COLOURS = {"grpc": "#3b82d6", "rest": "#e0823d"}
_STORM = "storm 1.5x"


def main(figures: Path, picture: Path) -> None:
    found = json.loads(figures.read_text())
    figure, (loads, storm) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2))
    _simulated(loads, found["simulated"])
    for protocol, colour in COLOURS.items():
        points = [point for point in found["live"] if point["protocol"] == protocol and point["load"] >= 1]
        steady = [point for point in points if point["step"] != _STORM]
        loads.plot(
            [point["load"] for point in steady],
            [100 * point["share"] for point in steady],
            color=colour,
            marker="o",
            markersize=4,
            label=protocol,
        )
    loads.axhline(90, color=INK, linestyle="--", linewidth=1)
    loads.annotate("goal", (1, 90), xytext=(0, -12), textcoords="offset points")
    loads.set_xlabel("load, times the capacity")
    loads.set_title("responses within 0.5 s, % of the peak", fontsize=10)
    _storms(storm, found)
    for axes in (loads, storm):
        axes.set_ylim(0, 110)
    handles, labels = loads.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, picture)


def _simulated(axes: Axes, outcomes: list[dict[str, Any]]) -> None:
    plain = [each for each in outcomes if each["scenario"].removesuffix("x").isdigit()]
    steady = [(float(each["scenario"].removesuffix("x")), each) for each in plain]
    axes.plot(
        [load for load, _ in steady],
        [100 * each["goodput"] for _, each in steady],
        color=INK,
        marker="o",
        markersize=4,
        label="simulated",
    )


def _storms(axes: Axes, found: dict[str, Any]) -> None:
    bars = [("simulated", INK, each["goodput"]) for each in found["simulated"] if each["scenario"] == _STORM]
    bars += [
        (point["protocol"], COLOURS[point["protocol"]], point["share"])
        for point in found["live"]
        if point["step"] == _STORM
    ]
    axes.bar([name for name, _, _ in bars], [100 * share for _, _, share in bars], color=[each for _, each, _ in bars])
    axes.set_title("retry storm at 1.5 times the capacity", fontsize=10)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
