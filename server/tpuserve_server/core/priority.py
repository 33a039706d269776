"""Priority: which requests go first. Imports nothing heavy: hosts that only supervise know it."""

import enum


class Priority(enum.IntEnum):
    """Whatever waits of HIGH goes before LOW, which fills the padding of its batches."""

    HIGH = 0
    LOW = 1
