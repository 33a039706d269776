"""Options of the access log and of the request log. Light, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_path
from tpuserve_server.core.terms.setting import Setting

LogFormat: TypeAlias = Literal["jsonl", "tfrecord"]


@dataclass(frozen=True, slots=True)
class RequestLogOptions:
    """Log options for models without a LoggingConfig. Without a prefix, their requests are not logged.

    Raises:
        InvalidArgument: the prefix is too long or has control characters.
    """

    path_prefix: Annotated[
        str | None,
        Setting(
            "Operations",
            "Log requests and responses to files PREFIX-MODEL-….",
            name="request_log_path_prefix",
            shown_default="none",
        ),
    ] = None
    sampling_rate: Annotated[
        float,
        Setting("Operations", "Share of the requests to log.", name="request_log_sampling_rate", at_least=0, at_most=1),
    ] = 1.0
    format: Annotated[
        LogFormat,
        Setting(
            "Operations", "Format of the PredictionLog records: JSON lines or TFRecord.", name="request_log_format"
        ),
    ] = "jsonl"

    def __post_init__(self) -> None:
        check_path("request_log_path_prefix", self.path_prefix or "")


@dataclass(frozen=True, slots=True)
class Rotation:
    """Maximum size and number of a model's log files."""

    max_bytes: Annotated[
        int,
        Setting(
            "Operations",
            "Maximum size of a log file; the server then starts the model's next one.",
            name="request_log_max_bytes",
            at_least=1,
        ),
    ] = 64 * 2**20
    max_files: Annotated[
        int,
        Setting("Operations", "Number of log files to keep for each model.", name="request_log_max_files", at_least=1),
    ] = 16


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The names on the metrics page beside the server's own and TensorFlow Serving's."""

    triton: Annotated[
        bool,
        Setting(
            "Operations",
            "Add metrics with Triton's names to the metrics page, such as nv_inference_request_success.",
            name="enable_triton_metrics",
        ),
    ] = False


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
