"""ControlOptions: the flag of the clients that may control the server. Cheap to import, for the command line."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpuserve_server.core.terms.setting import Setting


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
