"""Options of the request log. Imports no heavy modules, because the command line imports it."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from tpuserve_server.core.setting import Setting

LogFormat: TypeAlias = Literal["jsonl", "tfrecord"]


@dataclass(frozen=True, slots=True)
class RequestLogOptions:
    """Log options for models without a LoggingConfig. Without a prefix, their requests are not logged."""

    path_prefix: Annotated[
        str | None,
        Setting(
            "Operations",
            "Log requests and their answers to files PREFIX-MODEL-….",
            name="request_log_path_prefix",
            shown_default="none",
            page="log requests and their answers to files `PREFIX-MODEL-…`",
        ),
    ] = None
    sampling_rate: Annotated[
        float,
        Setting(
            "Operations",
            "Share of the requests that is logged.",
            name="request_log_sampling_rate",
            at_least=0,
            at_most=1,
        ),
    ] = 1.0
    format: Annotated[
        LogFormat,
        Setting(
            "Operations",
            "JSON lines, or TFRecord: both of PredictionLog.",
            name="request_log_format",
            page="`jsonl` or `tfrecord`, both of PredictionLog",
        ),
    ] = "jsonl"


@dataclass(frozen=True, slots=True)
class Rotation:
    """Maximum size and number of a model's log files."""

    max_bytes: Annotated[
        int,
        Setting(
            "Operations",
            "Size at which a model's next log file is begun.",
            name="request_log_max_bytes",
            at_least=1,
        ),
    ] = 64 * 2**20
    max_files: Annotated[
        int, Setting("Operations", "Log files kept for each model.", name="request_log_max_files", at_least=1)
    ] = 16
