"""Options of the access log. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import Setting

Requests: TypeAlias = Literal["off", "errors", "all"]


@dataclass(frozen=True, slots=True)
class AccessLogOptions:
    """The requests that have a line in the log. Off by default: a line costs more than a small prediction's codec.

    Raises:
        InvalidArgument: a ratio for successful requests, none of which are logged.
    """

    requests: Annotated[
        Requests,
        Setting(
            "Operations", "Log a line for each request: for none, for those that fail, or for all.", name="access_log"
        ),
    ] = "off"
    sample_ratio: Annotated[
        float,
        Setting(
            "Operations",
            "Share of the successful requests that --access_log=all logs.",
            name="access_log_sample_ratio",
            at_least=0,
            at_most=1,
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        if self.sample_ratio != 1.0 and self.requests != "all":
            raise InvalidArgument(
                f"access_log_sample_ratio is {self.sample_ratio:g}, but access_log is {self.requests}, which logs no "
                "successful requests: add --access_log=all"
            )

    @property
    def success_ratio(self) -> float:
        """Share of the successful requests to log."""
        return self.sample_ratio if self.requests == "all" else 0.0
