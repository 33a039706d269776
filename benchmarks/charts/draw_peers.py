"""Draw requests per second and CPU per request from a run of peers.py. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from style import plt, save

COLOURS = {"rest": "#3b82d6", "grpc": "#e0823d"}
NAMES = {"rest": "HTTP, JSON", "grpc": "gRPC"}
HEIGHT = 0.38


def main(figures: Path, picture: Path) -> None:
    results = [result for result in json.loads(figures.read_text())["results"] if result["measured"]]
    results.reverse()
    figure, (rates, costs) = plt.subplots(1, 2, sharey=True, figsize=(10, 0.6 * len(results) + 1.2))
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


def _bars(
    axes: Axes, results: list[dict[str, Any]], title: str, value: Callable[[dict[str, Any]], float], shown: str
) -> None:
    for offset, (protocol, colour) in zip((HEIGHT / 2, -HEIGHT / 2), COLOURS.items(), strict=True):
        places, values = [], []
        for place, points in enumerate(result["measured"]["points"] for result in results):
            for point in points:
                if point["protocol"] == protocol:
                    # Center a single bar on its line.
                    places.append(place + offset if len(points) > 1 else place)
                    values.append(value(point))
        bars = axes.barh(places, values, HEIGHT, color=colour, label=NAMES[protocol])
        axes.bar_label(bars, [shown.format(value) for value in values], padding=3, fontsize=8.5)
    axes.set_yticks(range(len(results)), [result["title"] for result in results])
    axes.set_title(title, fontsize=10)
    axes.tick_params(length=0)
    axes.margins(x=0.15)
    axes.set_xticks([])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
