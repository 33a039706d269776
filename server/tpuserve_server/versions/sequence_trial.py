"""A trial of a model's sequences: which of its inputs' lengths must be equal, and which of them each output has.

A signature does not say: it leaves them all free. So the model is run with made-up rows of two lengths.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.sequences import Axis, Sequences
from tpuserve_server.core.servable import Servable
from tpuserve_server.core.types import Signature
from tpuserve_server.versions.blank_rows import blank_rows

# Of more input axes the ties are not looked for: every set of them may need a run.
_MOST_AXES = 4

# Axes by index.
_Group: TypeAlias = frozenset[int]


def try_all_sequences(servable: Servable, batching: Mapping[str, BatchingOptions]) -> dict[str, BatchingOptions]:
    """The same batching, and what trials tell of the sequences in it; blocks."""
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
    """What a few runs of `rows` rows tell of `sequences`, or the same again; blocks. Never raises for a run that fails.

    One output axis may follow one input: it has its length in every run. What has not is left as the model makes it.
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
        # By which axes were long: the sizes of the outputs' free axes.
        self._sizes: dict[_Group, Mapping[Axis, int]] = {}

    def runs(self, long: _Group) -> bool:
        """Whether the model runs when these axes are long."""
        lengths = [self._long if index in long else self._short for index in range(len(self._sequences.axes))]
        inputs = blank_rows(self._signature, self._rows, self._sequences, lengths)
        try:
            outputs = self._servable.dispatch(self._signature.name, inputs, tuple(self._signature.outputs)).result()
        except ServingError:
            return False
        self._sizes[long] = {axis: outputs[axis.tensor].shape[axis.dimension] for axis in self._sequences.follows}
        return True

    def follows(self, groups: list[_Group]) -> dict[Axis, tuple[int, ...]]:
        """By output axis, the group that has had its length in every run; nothing where none has."""
        return {
            axis: next((tuple(sorted(group)) for group in groups if self._has_length_of(axis, group)), ())
            for axis in self._sequences.follows
        }

    def _has_length_of(self, axis: Axis, group: _Group) -> bool:
        return all(sizes[axis] == self._length(group, long) for long, sizes in self._sizes.items())

    def _length(self, group: _Group, long: _Group) -> int:
        return self._long if group <= long else self._short


def _two_lengths(buckets: tuple[int, ...]) -> tuple[int, int] | None:
    """Two that a device may be made ready for, as far as there are two. Not 1, which goes with every length."""
    longer = [length for length in buckets if length > 1]
    if len(longer) > 1:
        return longer[0], longer[1]
    return (longer[0] // 2, longer[0]) if longer and longer[0] > 3 else None


def _subsets(every: _Group) -> Iterator[_Group]:
    for size in range(1, len(every)):
        yield from map(frozenset, itertools.combinations(sorted(every), size))
