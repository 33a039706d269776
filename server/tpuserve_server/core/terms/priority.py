"""Priority: the order of requests. Cheap to import, because supervising hosts use it."""

import enum


class Priority(enum.IntEnum):
    """The priority of a request. HIGH runs before LOW, and LOW also fills the padding of HIGH batches."""

    HIGH = 0
    LOW = 1
