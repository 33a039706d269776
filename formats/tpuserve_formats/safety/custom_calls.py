"""Custom calls of StableHLO programs: calls of functions of the process or the device, by name.

A name that a process has registered may be any function, such as a callback into Python. Only the names in
`custom_calls.txt` are allowed: those that JAX guarantees for stored programs, except calls with code for the host.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.bytecode import Bytecode

CUSTOM_CALLS_FILE: Final = Path(__file__).with_name("custom_calls.txt")
UNREADABLE: Final = "(the program cannot be read)"
# Transfers between the device and its host.
_TRANSFERS: Final = ("infeed", "outfeed", "send", "recv")


@cache
def _allowed() -> frozenset[str]:
    lines = CUSTOM_CALLS_FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def find_calls_in_bytecode(program: bytes) -> list[str]:
    """Return the calls of a serialized StableHLO program that are not allowed, by name.

    The list has UNREADABLE for a program in an unknown form, such as MLIR's text. JAX and TensorFlow store bytecode.
    """
    try:
        targets = set(_targets(program))
    except FormatError:
        return [UNREADABLE]
    return sorted(targets - _allowed())


def _targets(program: bytes) -> Iterator[str]:
    bytecode = Bytecode.read(program)
    names = {operation.rpartition(".")[2] for operation in bytecode.operations}
    yield from (name for name in names if re.sub(r"_v[0-9]+$", "", name) in _TRANSFERS)
    if any(name.startswith("custom_call") for name in names):
        found = list(bytecode.custom_calls())
        if not found:
            raise FormatError("the program has calls without names")
        yield from found
