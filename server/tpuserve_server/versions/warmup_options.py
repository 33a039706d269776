"""WarmupOptions: options of warm-up. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import Setting


@dataclass(frozen=True, slots=True)
class WarmupOptions:
    """Options of warm-up. `iterations` is the number of runs of each record; 0, upstream's default, means one.

    `makes_up_rows`: signatures of a version without recorded requests run a made-up row. The opposite of
    `--lenient_loads`.
    """

    enabled: Annotated[
        bool,
        Setting(
            "Operations",
            "Run the recorded requests, or made-up rows, and every batch size before a version becomes available.",
            name="enable_model_warmup",
        ),
    ] = True
    iterations: Annotated[
        int,
        Setting(
            "Operations",
            "Number of runs of each recorded request; 0: one.",
            name="num_request_iterations_for_warmup",
            at_least=0,
        ),
    ] = 0
    # Value of enable_signature_method_name_check, which the front-ends also use.
    check_method_names: bool = False
    makes_up_rows: bool = True
