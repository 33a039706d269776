"""Forms: the shapes of one request. The generator makes those that a signature admits, and those that it does not."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.zoo.catalogue.operation import Input, Operation

HUGE: Final = (2**20, 2**31, 2**45)
# Sizes that the server accepts for dimensions of tensors without elements, the largest included.
LARGE: Final = (2**8, 2**11)
SMALL: Final = (0, 1, 2, 3, 8)
MOST_RANKS = 7
# Sizes are sampled where there are more of them.
MOST_SMALL = 150

Shapes = Mapping[str, tuple[int, ...]]


class Kind(StrEnum):
    """Why a form is sent."""

    VALID = "valid"
    RANK = "wrong rank"
    FIXED = "wrong fixed dimension"
    HUGE = "huge and empty"
    LARGE = "large and empty"
    SMALL = "small"
    UNEQUAL = "small, unequal inputs"


@dataclass(frozen=True, slots=True)
class Form:
    """The shapes of one request's inputs."""

    kind: Kind
    shapes: Shapes

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(_count(shape) for shape in self.shapes.values())

    def __str__(self) -> str:
        return " ".join(f"{name}[{','.join(map(_short, shape))}]" for name, shape in self.shapes.items())


def forms(operation: Operation) -> list[Form]:
    """Return the forms for an operation, without repetitions: the valid one first."""
    unique: dict[str, Form] = {}
    for form in _forms(operation):
        unique.setdefault(str(form), form)
    return [*unique.values()]


def _forms(operation: Operation) -> Iterator[Form]:
    valid = {name: one.sized(operation.valid) for name, one in operation.inputs.items()}
    yield Form(Kind.VALID, valid)
    yield from (Form(Kind.SMALL, shapes) for shapes in _small(operation))
    for name, one in operation.inputs.items():
        for kind, shape in _of_input(one, valid[name]):
            yield Form(kind, {**valid, name: shape})
    yield from (Form(Kind.HUGE, shapes) for shapes in _huge_together(operation))


def _small(operation: Operation) -> Iterator[Shapes]:
    """Yield small sizes of the free dimensions, equal where the signature names them equal."""
    names = operation.names
    every = [*itertools.product(SMALL, repeat=len(names))]
    if len(every) > MOST_SMALL:
        valid = tuple(operation.valid.values())
        # Each size at each place, each pair of empties, and a sample of the others.
        chosen = [(*valid[:place], size, *valid[place + 1 :]) for place in range(len(names)) for size in SMALL]
        chosen += itertools.product((0, 1), repeat=len(names))
        chosen += itertools.product((0, 2), repeat=len(names))
        every = chosen + random.Random(7).sample(every, max(0, MOST_SMALL - len(chosen)))
    for sizes in every:
        by_name = dict(zip(names, sizes, strict=True))
        yield {name: one.sized(by_name) for name, one in operation.inputs.items()}


def _huge_together(operation: Operation) -> Iterator[Shapes]:
    """Yield a huge size of one dimension in every input that has it, and an empty one next to it."""
    names = operation.names
    for huge, name, empty in itertools.product(HUGE, names, names):
        if name != empty:
            sizes = {**operation.valid, name: huge, empty: 0}
            shapes = {key: one.sized(sizes) for key, one in operation.inputs.items()}
            if all(_count(shape) < 2**20 for shape in shapes.values()):
                yield shapes


def _of_input(one: Input, valid: tuple[int, ...]) -> Iterator[tuple[Kind, tuple[int, ...]]]:
    """Yield shapes of one input, while the others have their valid ones."""
    for place in one.free:
        yield from ((Kind.UNEQUAL, _with(valid, place, size)) for size in SMALL)
    for place in range(len(valid)):
        if place not in one.free:
            yield from ((Kind.FIXED, _with(valid, place, size)) for size in (0, 1, 2, 5) if size != valid[place])
    for rank in range(MOST_RANKS):
        if rank != len(valid):
            yield from ((Kind.RANK, shape) for shape in _of_rank(rank, valid))
        for huge, place, empty in itertools.product(HUGE, range(rank), range(rank)):
            if place != empty:
                base = valid if rank == len(valid) else (1,) * rank
                yield Kind.HUGE, _with(_with(base, place, huge), empty, 0)
        if rank == len(valid):
            for large, place, empty in itertools.product(LARGE, one.free, range(rank)):
                if place != empty:
                    yield Kind.LARGE, _with(_with(valid, place, large), empty, 0)
    if len(valid) >= 2:
        yield from (
            (Kind.HUGE, _with(_with((0,) * len(valid), place, huge), place, huge))
            for huge in HUGE
            for place in one.free
        )


def _of_rank(rank: int, valid: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    yield (1,) * rank
    if rank:
        yield (2,) * rank
        yield (*(1,) * (rank - 1), 0)
        yield (0, *(1,) * (rank - 1))
        # The valid shape with more dimensions, or fewer.
        yield (*(1,) * (rank - len(valid)), *valid[max(0, len(valid) - rank) :])
        yield (*valid[:rank], *(1,) * (rank - len(valid)))


def _with(shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
    return (*shape[:place], size, *shape[place + 1 :])


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _short(size: int) -> str:
    return f"2^{size.bit_length() - 1}" if size >= 2**11 and not size & (size - 1) else str(size)
