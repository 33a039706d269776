"""Arrival times of recorded requests, merged from several recordings, with the line of each request."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_loadtests.requests.recording import BadRecording, Recording


@dataclass(frozen=True, slots=True)
class Timeline:
    """A merged timeline. `instants` count seconds from the first request, and `order` holds the line of each request.

    `notes` describe samples.
    """

    instants: tuple[float, ...]
    order: tuple[int, ...]
    notes: tuple[str, ...] = ()


def merged_timeline(recordings: Sequence[tuple[Recording, int]], speed: float = 1.0) -> Timeline:
    """Merge recordings, `speed` times as fast as recorded. Each comes with the number of lines that share its requests.

    Raises BadRecording if times are missing, or for a single request.
    """
    arrivals: list[tuple[float, int]] = []
    first_line = 0
    for recording, lines in recordings:
        instants = recording.instants()
        if instants is None:
            raise BadRecording(f"{recording.title} has no request times. Set the load with --rate or --users.")
        arrivals += [(instant, first_line + number % lines) for number, instant in enumerate(instants)]
        first_line += lines
    arrivals.sort()
    if len(arrivals) < 2:
        raise BadRecording(f"{recordings[0][0].title} has only one request. Set the load with --rate or --users.")
    start_s = arrivals[0][0]
    return Timeline(
        tuple((instant - start_s) / speed for instant, _ in arrivals),
        tuple(line for _, line in arrivals),
        tuple(_sample_note(recording, speed) for recording, _ in recordings if recording.sampled < 1),
    )


def _sample_note(recording: Recording, speed: float) -> str:
    sampled = recording.sampled
    return (
        f"{recording.title} is a sample of {100 * sampled:.3g} %: with --speed {speed:g}, requests arrive at "
        f"{sampled * speed:.3g} of the real rate (--speed {1 / sampled:.3g} restores the real rate)"
    )
