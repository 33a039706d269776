"""Draw requests per second and CPU per request from a run of peers.py. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from style import plt, save

# Color and label of each kind of wire.
KINDS = {
    "predict_rest": ("#3b82d6", "HTTP, JSON"),
    "predict_grpc": ("#e0823d", "gRPC"),
    "infer_rest": ("#93b8e6", "OIP, HTTP, JSON"),
    "infer_binary": ("#5aa469", "OIP, HTTP, binary"),
    "infer_grpc": ("#efb98f", "OIP, gRPC"),
}
# Wires of custom handlers also send JSON over HTTP. The chart shows them as this kind.
CUSTOM = {"row_rest": "predict_rest", "rows_rest": "predict_rest"}
# Sum of the heights of a server's bars, where 1 is the distance between servers.
HEIGHT = 0.84


def main(figures: Path, picture: Path) -> None:
    results = [result for result in json.loads(figures.read_text())["results"] if result["measured"]]
    results.reverse()
    figure, (rates, costs) = plt.subplots(
        1,
        2,
        sharey=True,
        figsize=(10, 0.24 * sum(len(_points(result)) for result in results) + 0.1 * len(results) + 1.2),
    )
    _bars(rates, results, "requests per second, 32 in flight (higher is better)", _rate, "{:,.0f}")
    _bars(
        costs,
        results,
        "CPU-seconds per 1000 requests (lower is better)",
        lambda point: point["cpu_s_per_1000"],
        "{:.2f}",
    )
    handles, labels = rates.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, picture)


def _rate(point: dict[str, Any]) -> float:
    load = point["load"]
    return float((load["requests"] - load["failures"]) / load["elapsed_s"])


def _points(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the points of a result with their kinds, in the order of KINDS."""
    points = [(CUSTOM.get(point["wire"], point["wire"]), point) for point in result["measured"]["points"]]
    return sorted(points, key=lambda pair: list(KINDS).index(pair[0]))


def _bars(
    axes: Axes, results: list[dict[str, Any]], title: str, value: Callable[[dict[str, Any]], float], shown: str
) -> None:
    for kind, (colour, label) in KINDS.items():
        places, values, heights = [], [], []
        for middle, points in enumerate(map(_points, results)):
            height = HEIGHT / len(points)
            for number, (name, point) in enumerate(points):
                if name == kind:
                    # The first bar is on top.
                    places.append(middle + HEIGHT / 2 - (number + 0.5) * height)
                    values.append(value(point))
                    heights.append(height)
        bars = axes.barh(places, values, heights, color=colour, label=label)
        axes.bar_label(bars, [shown.format(value) for value in values], padding=3, fontsize=8.5)
    axes.set_yticks(range(len(results)), [result["title"] for result in results])
    axes.set_title(title, fontsize=10)
    axes.tick_params(length=0)
    axes.margins(x=0.15)
    axes.set_xticks([])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
