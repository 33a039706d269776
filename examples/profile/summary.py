"""Summary of a trace: the batches of each model, the time of its device threads, and its slowest operations.

It reads the file that TensorBoard shows, an XSpace: planes of lines of events. A line is a thread.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpuserve_formats.messages.official import XSpace

# TensorFlow names an event NODE:TYPE. Other events of its runtime have `::` in their names.
_TENSORFLOW_OPERATION = re.compile(r"([^:]+):(\w+)")
_MS_PER_PS = 1e-9


@dataclass(slots=True)
class Batches:
    """The batches of a model. Times are sums in milliseconds.

    `batch_ms` is for joining the rows and dispatching them, and with TensorFlow for the run. `results_ms` is for the
    wait for the device, and for the responses. `between_ms` is the time of the device threads between these steps.
    """

    count: int = 0
    requests: int = 0
    rows: int = 0
    padded_rows: int = 0
    batch_ms: float = 0.0
    results_ms: float = 0.0
    between_ms: float = 0.0

    @property
    def padding(self) -> float:
        """Share of the rows that the device computed and no request sent."""
        return 1 - self.rows / self.padded_rows if self.padded_rows else 0.0


@dataclass(slots=True)
class Summary:
    """Batches by model, as `NAME:VERSION`, and milliseconds and runs of each operation."""

    batches: dict[str, Batches] = field(default_factory=lambda: defaultdict(Batches))
    operation_ms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    operation_runs: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a thread, in picoseconds since the start of its line."""

    name: str
    begin_ps: int
    duration_ps: int
    facts: Mapping[str, Any]


def read_summary(trace: Path) -> Summary:
    """Summarize an `.xplane.pb` file of one server."""
    summary = Summary()
    space = XSpace.FromString(trace.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            events = sorted(_events(plane, line), key=lambda event: event.begin_ps)
            _add_batches(summary, events)
            for event in events:
                _add_operation(summary, event)
    return summary


def _add_batches(summary: Summary, events: list[Event]) -> None:
    """Add the events that the server adds to the traces of its runtimes: `batch MODEL` and `results MODEL`."""
    spans = [event for event in events if event.name.startswith(("batch ", "results ")) and "batch" in event.facts]
    for event in spans:
        step, _, model = event.name.partition(" ")
        found = summary.batches[model]
        if step == "results":
            found.results_ms += event.duration_ps * _MS_PER_PS
            continue
        found.batch_ms += event.duration_ps * _MS_PER_PS
        found.count += 1
        found.requests += event.facts["requests"]
        found.rows += event.facts["rows"]
        found.padded_rows += event.facts["bucket"]
    for before, after in itertools.pairwise(spans):
        gap_ps = after.begin_ps - before.begin_ps - before.duration_ps
        summary.batches[after.name.partition(" ")[2]].between_ms += max(gap_ps, 0) * _MS_PER_PS


def _add_operation(summary: Summary, event: Event) -> None:
    """Add an operation of TensorFlow, or one of a device program, whose event has the fact `hlo_op`."""
    found = _TENSORFLOW_OPERATION.fullmatch(event.name)
    if found is not None and "/" in event.name:
        name = f"{'/'.join(found[1].split('/')[-2:])} ({found[2]})"
    elif "hlo_op" in event.facts:
        name = event.name
    else:
        return
    summary.operation_ms[name] += event.duration_ps * _MS_PER_PS
    summary.operation_runs[name] += 1


def _events(plane: Any, line: Any) -> Iterator[Event]:  # noqa: ANN401 - messages, whose classes are made at run time
    for event in line.events:
        facts = {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}
        yield Event(plane.event_metadata[event.metadata_id].name, event.offset_ps, event.duration_ps, facts)


def _value(plane: Any, stat: Any) -> Any:  # noqa: ANN401 - as above, and a number or a text
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return plane.stat_metadata[value].name if kind == "ref_value" else value
