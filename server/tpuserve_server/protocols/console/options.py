"""ConsoleOptions: the flag of the console. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Whether the server has a console."""

    enable_console: Annotated[
        bool,
        Setting(
            "Operations", "Serve the console, the status and the slow requests on the REST port: /console and /debug."
        ),
    ] = True
