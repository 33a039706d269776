"""The table of sessions that `make fuzz` runs: a command for each target."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.fuzz.targets import PARSERS


class Folders(NamedTuple):
    """Where a session writes: new inputs of Atheris, findings, and the file of its counts."""

    kept: Path
    findings: Path
    counts: Path


Command = Callable[[int, Folders], list[str]]


def _parser(name: str) -> Command:
    return lambda seconds, at: _python("tests.fuzz.session", name, seconds, at.kept, at.findings, at.counts)


def _transport(transport: str) -> Command:
    return lambda seconds, at: _python("tests.fuzz.transports.session", transport, seconds, at.findings, at.counts)


def _python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


SESSIONS: Final[Mapping[str, Command]] = MappingProxyType(
    {
        **{name: _parser(name) for name in PARSERS},
        "registry": lambda seconds, at: _python("tests.fuzz.registry.session", seconds, at.findings, at.counts),
        **{name: _transport(name) for name in ("http2", "http1")},
        "openapi": lambda seconds, at: _python("tests.fuzz.openapi_session", seconds, at.findings, at.counts),
    }
)
