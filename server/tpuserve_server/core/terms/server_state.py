"""State of the whole server: ready or not, build, certificates, traffic, and why it should be replaced.

The supervisor imports this module: light imports only.
"""

import enum
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias


class ServerState(enum.Enum):
    """State of the server. The values are labels of a metric."""

    # Not ready, because the start of a model has not ended.
    STARTING = "starting"
    READY = "ready"
    NOT_READY = "not_ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Build:
    """The versions of the server and of Python."""

    version: str
    python: str


@dataclass(frozen=True, slots=True)
class CertificateStatus:
    """The status of the certificates, without their texts.

    `expires_unix_s` is the earliest expiry in seconds since 1970: of the server's certificate and its intermediate
    certificates as `server`, and of the authorities of client certificates as `client_ca`. A certificate whose validity
    cannot be read is omitted. `reload_failure` is the reason why the last reload kept the certificates, or empty.
    `names` are the sources of the certificates, for messages.
    """

    expires_unix_s: Mapping[str, float] = field(default_factory=dict)
    reload_failure: str = ""
    names: Mapping[str, str] = field(default_factory=lambda: {"server": "server_cert", "client_ca": "custom_ca"})


Refusal: TypeAlias = Literal["too_late", "impossible_deadline", "rate", "header_size"]
REFUSALS: Final[tuple[Refusal, ...]] = ("too_late", "impossible_deadline", "rate", "header_size")


class Traffic:
    """Counts of the requests that reach the server, before their models are known.

    The thread of the host's event loop counts. Any thread may read.
    """

    __slots__ = ("refused", "requests")

    def __init__(self) -> None:
        """Start with no requests."""
        # By version of HTTP, such as `1.1` or `2`.
        self.requests: defaultdict[str, int] = defaultdict(int)
        # Requests that were refused before their message was read, by reason.
        self.refused: dict[Refusal, int] = dict.fromkeys(REFUSALS, 0)


Damage: TypeAlias = Literal["hung run", "lost device"]
HUNG: Final = "hung run"
LOST: Final = "lost device"


@dataclass(frozen=True, slots=True)
class Replacement:
    """Why another process should take the place of this one: a sentence for the operator."""

    damage: Damage
    why: str
