"""Options of the request log. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

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
