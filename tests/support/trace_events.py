"""Events of a trace: the facts that its spans carry, and the names of its threads."""

from typing import Any

from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace


def find_facts(trace: bytes, name: str) -> dict[str, Any]:
    """Return the facts of the first event with this name. Raises StopIteration without such an event."""
    return next(
        {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}
        for plane in XSpace.FromString(trace).planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == name
    )


def find_threads(trace: bytes, name: str) -> set[str]:
    """Return the names of the threads that have an event with this name."""
    return {
        line.name
        for plane in XSpace.FromString(trace).planes
        for line in plane.lines
        if any(plane.event_metadata[event.metadata_id].name == name for event in line.events)
    }


def _value(plane: Any, stat: Any) -> Any:  # noqa: ANN401 - messages, which have no types, and a number or a text
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return plane.stat_metadata[value].name if kind == "ref_value" else value
