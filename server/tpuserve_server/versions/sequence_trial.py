"""Trial of a model's sequences: finds input lengths that must be equal, and the input length of each output.

A signature does not state them, because all these dimensions are free. The trial runs the model with blank rows of two
lengths.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.sequences import Axis, Sequences
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import Servable
from tpuserve_server.core.terms.types import Signature
from tpuserve_server.versions.run_timer import blank_rows

# Maximum number of input axes to search for ties, because each set of axes may need a run.
_MOST_AXES = 4

# Axes by index.
_Group: TypeAlias = frozenset[int]


def try_all_sequences(servable: Servable, batching: Mapping[str, BatchingOptions]) -> dict[str, BatchingOptions]:
    """Return the batching with the results of trials of its sequences. Blocks."""
    return {
        name: options
        if options.sequences is None
        else replace(
            options,
            sequences=try_sequences(servable, servable.signatures[name], options.sequences, (*options.buckets, 1)[0]),
        )
        for name, options in batching.items()
    }


def try_sequences(servable: Servable, signature: Signature, sequences: Sequences, rows: int) -> Sequences:
    """Return `sequences` with the results of a few runs of `rows` rows, or unchanged if they fail. Blocks.

    A run that fails raises no error. An output axis follows an input if it has the input's length in every run. Other
    output axes keep the length that the model gives them.
    """
    lengths = _two_lengths(sequences.buckets)
    if lengths is None:
        return sequences
    trial = _Trial(servable, signature, sequences, rows, lengths)
    every = frozenset(range(len(sequences.axes)))
    if not trial.runs(frozenset()) or not trial.runs(every):
        return sequences
    if len(every) > _MOST_AXES:
        return replace(sequences, follows=trial.follows([every]))
    groups = [every]
    for long in _subsets(every):
        if any(group & long and group - long for group in groups) and trial.runs(long):
            groups = [part for group in groups for part in (group & long, group - long) if part]
    ties = tuple(sorted(tuple(sorted(group)) for group in groups))
    return replace(sequences, follows=trial.follows(groups), ties=ties)


class _Trial:
    """Runs of one signature in which some axes are long and the others short."""

    def __init__(
        self, servable: Servable, signature: Signature, sequences: Sequences, rows: int, lengths: tuple[int, int]
    ) -> None:
        self._servable = servable
        self._signature = signature
        self._sequences = sequences
        self._rows = rows
        self._short, self._long = lengths
        # Sizes of the outputs' free axes, by the set of long input axes.
        self._sizes: dict[_Group, Mapping[Axis, int]] = {}

    def runs(self, long: _Group) -> bool:
        """Return whether the model runs when these axes are long."""
        lengths = [self._long if index in long else self._short for index in range(len(self._sequences.axes))]
        inputs = blank_rows(self._signature, self._rows, self._sequences, lengths)
        try:
            outputs = self._servable.dispatch(self._signature.name, inputs, tuple(self._signature.outputs)).result()
        except ServingError:
            return False
        self._sizes[long] = {axis: outputs[axis.tensor].shape[axis.dimension] for axis in self._sequences.follows}
        return True

    def follows(self, groups: list[_Group]) -> dict[Axis, tuple[int, ...]]:
        """Return, for each output axis, the group whose length it has in every run; empty if there is none."""
        return {
            axis: next((tuple(sorted(group)) for group in groups if self._has_length_of(axis, group)), ())
            for axis in self._sequences.follows
        }

    def _has_length_of(self, axis: Axis, group: _Group) -> bool:
        return all(sizes[axis] == self._length(group, long) for long, sizes in self._sizes.items())

    def _length(self, group: _Group, long: _Group) -> int:
        return self._long if group <= long else self._short


def _two_lengths(buckets: tuple[int, ...]) -> tuple[int, int] | None:
    """Return two lengths, if possible of buckets, or None. Length 1 is excluded: it is compatible with every length."""
    longer = [length for length in buckets if length > 1]
    if len(longer) > 1:
        return longer[0], longer[1]
    return (longer[0] // 2, longer[0]) if longer and longer[0] > 3 else None


def _subsets(every: _Group) -> Iterator[_Group]:
    for size in range(1, len(every)):
        yield from map(frozenset, itertools.combinations(sorted(every), size))
