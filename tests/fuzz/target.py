"""Target: one parser of outside data, with the rules that hold for every input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Packages whose branches guide the fuzzer.
PACKAGES: Final = ("tpuserve_formats", "tpuserve_server", "tpuserve_client", "tpuserve_loadtests")


@dataclass(frozen=True, slots=True)
class Target:
    """A parser under test.

    `run` parses one input and checks the result. It returns whether the parser accepted the input. Every exception that
    it raises is a finding: it catches only the errors that the parser documents.
    """

    run: Callable[[bytes], bool]
    max_bytes: int = 4096
    # Texts that the fuzzer inserts.
    words: tuple[bytes, ...] = ()


class Finding(AssertionError):
    """A wrong result of a parser, or an error that it must not raise."""


def expect(holds: bool, what: str) -> None:
    """Raise a Finding unless `holds`. Python's assert statement can be turned off."""
    if not holds:
        raise Finding(what)
