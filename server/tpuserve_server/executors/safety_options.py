"""SafetyOptions: what models may do beyond computing. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class SafetyOptions:
    """Operations and custom calls that models may have although this server refuses them otherwise."""

    allowed_ops: Annotated[
        tuple[str, ...],
        Setting(
            "Models",
            "Operations that models may have although they read or write files, run Python, reach other processes or "
            "are unknown, separated by commas. For models of trusted authors.",
            shown_default="none",
        ),
    ] = ()
