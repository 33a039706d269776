"""Draw fleets under four curves of load, by signal, from fleet.py. Arguments: FIGURES.json PICTURE.svg."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from style import INK, plt, save

COLOURS: Final = {"queue wait": "#e0823d", "utilisation": "#8a63d2", "demand": "#3b82d6"}
POLICY: Final = "objective"
# Curves, with the first and the last minute to draw after the load rises. The day is drawn whole, in hours.
WINDOWS: Final = {"step": (-5, 20), "spike": (-5, 30), "storm": (-5, 30), "day": None}
# The minute at which the load rises.
_RISE_MIN: Final = 30


def main(figures: Path, picture: Path) -> None:
    found = json.loads(figures.read_text())["results"]
    moments = {(each["curve"], each["signal"]): each["moments"] for each in found if each["policy"] == POLICY}
    figure, rows = plt.subplots(2, len(WINDOWS), figsize=(12, 5), sharex="col", sharey="row")
    for (curve, window), goodput, servers in zip(WINDOWS.items(), *rows, strict=True):
        for signal, colour in COLOURS.items():
            times, shown = _window(moments[curve, signal], window)
            # Answered retries of earlier requests can exceed the requests of a moment.
            goodput.plot(times, [min(100 * answered / wanted, 100) for _, wanted, answered, _ in shown], color=colour)
            servers.step(times, [count for _, _, _, count in shown], where="post", color=colour, label=signal)
        goodput.axhline(95, color=INK, linestyle="--", linewidth=1)
        goodput.set_title(curve, fontsize=10)
        servers.set_xlabel("hour" if window is None else "minutes after the rise")
    rows[0][0].set_ylim(0, 105)
    rows[0][0].set_ylabel("answered in time, %")
    rows[1][0].set_ylim(bottom=0)
    rows[1][0].set_ylabel("servers")
    handles, labels = rows[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(handles), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save(figure, picture)


def _window(moments: list[list[Any]], window: tuple[int, int] | None) -> tuple[list[float], list[list[Any]]]:
    """Return the times of the moments in the window, in its unit, and these moments."""
    if window is None:
        return [at_s / 3600 for at_s, *_ in moments], moments
    first, last = window
    shown = [each for each in moments if first <= each[0] / 60 - _RISE_MIN <= last]
    return [each[0] / 60 - _RISE_MIN for each in shown], shown


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
