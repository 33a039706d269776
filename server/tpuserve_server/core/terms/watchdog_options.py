"""WatchdogOptions: the flags of the watchdog. Cheap to import, because the command line is generated from it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting


@dataclass(frozen=True, slots=True)
class WatchdogOptions:
    """Limits of a model's run in seconds; 0: none.

    After `run_timeout_s` the server counts the run as hung. Another `replace_after_s` later, the process that serves
    should be replaced.
    """

    run_timeout_s: Annotated[
        float,
        Setting(
            "Operations",
            "Time after which a run of a model on its device counts as hung, in seconds; 0: never.",
            name="run_timeout_seconds",
            page="time after which a run of a model on its device counts as hung, in seconds; 0: never "
            "([Hung runs](../how-to/operate/run.md#hung-runs))",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 300
    replace_after_s: Annotated[
        float,
        Setting(
            "Operations",
            "Time that a hung run has left to end, in seconds; the server then drains and starts a new process. 0: "
            "never.",
            name="replace_hung_after_seconds",
            page="time that a hung run has left to end, in seconds; the server then drains and starts a new "
            "process; 0: never ([Hung runs](../how-to/operate/run.md#hung-runs))",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 60
