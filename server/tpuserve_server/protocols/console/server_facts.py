"""ServerFacts: properties of the process that do not change while it serves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuserve_server.core.terms.server_state import Build


@dataclass(frozen=True, slots=True)
class ChangedFlag:
    """A flag with another value than its default, both as JSON. The values contain no secret."""

    name: str
    value: Any  # any JSON
    default: Any  # any JSON


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The build, the start, versions of packages by name, and flags.

    The start is in seconds since 1970, and by `Clock.monotonic_s`, which no clock step changes.
    """

    build: Build
    started_unix_s: float
    started_s: float
    packages: Mapping[str, str]
    flags: tuple[ChangedFlag, ...] = ()
