"""Options of the protocols and of the console, and the form of Vertex AI's routes.

Cheap to import, because the command line is generated from the options.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import Setting

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """Limits of one exchange of any protocol."""

    # Applies before and after decompression.
    max_body_bytes: int = 64 * _MEBIBYTE
    # rest_api_timeout_in_ms, from the arrival of the complete body. inf disables it.
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """The clients that may reload, load and unload models, profile, and change the log."""

    control: Annotated[
        Literal["loopback", "any"],
        Setting(
            "Operations",
            "Clients that may reload, load and unload models, record profiles and change log settings: those on this "
            "machine (loopback addresses and the UNIX socket), or any.",
        ),
    ] = "loopback"


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Whether the server has a console."""

    enable_console: Annotated[
        bool,
        Setting(
            "Operations", "Serve the console, the status and the slow requests on the REST port: /console and /debug."
        ),
    ] = True


SERVER_NAME: Final = "tpuserve"


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Options of the server's metadata."""

    server_name: Annotated[
        str,
        Setting(
            "Operations",
            "Name of the server in the Open Inference Protocol. Some tools for Triton expect `triton`.",
            name="oip_server_name",
        ),
    ] = SERVER_NAME


@dataclass(frozen=True, slots=True)
class SharedMemoryOptions:
    """Options of the system shared memory extension."""

    prefixes: Annotated[
        tuple[str, ...],
        Setting(
            "Operations",
            "Prefixes of POSIX shared memory keys that clients may register; empty disables shared memory.",
            name="shared_memory_prefix",
            shown_default="none",
        ),
    ] = ()


# The characters of a path on Vertex AI (RFC 3986, 3.3) without percent-encoding, which proxies may decode.
_PATH = re.compile(r"(/[A-Za-z0-9\-._~!$&'()*+,;=:@]+)+")


def check_route(setting: str, route: str) -> None:
    """Check the form of a route that Vertex AI chooses. `setting` names it in messages.

    Raises:
        InvalidArgument: the route is not an absolute path without query, empty segments and escapes.
    """
    if not _PATH.fullmatch(route) or {".", ".."} & set(route.split("/")):
        raise InvalidArgument(
            f"{setting} must be an absolute path without query and escapes, such as /predict; was {route!r}"
        )
