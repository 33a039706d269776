"""All operations of the zoo."""

from typing import Final

from tests.zoo.catalogue.media import MEDIA
from tests.zoo.catalogue.moves import MOVES
from tests.zoo.catalogue.neural import NEURAL
from tests.zoo.catalogue.numbers import NUMBERS
from tests.zoo.catalogue.operation import Operation
from tests.zoo.catalogue.structures import STRUCTURES

OPERATIONS: Final[tuple[Operation, ...]] = (*NEURAL, *NUMBERS, *MOVES, *MEDIA, *STRUCTURES)
