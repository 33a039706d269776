"""Settings for the server as a whole, and settings that several of its parts share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpuserve_server.command.logs import LogFormat
from tpuserve_server.core.setting import Setting


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings that `app.py` uses, or passes to more than one part."""

    device_slots: Annotated[
        int,
        Setting(
            "Batching",
            "Batches of all models together that run at the same time; 0: no limit while all weights are alike, else "
            "as many as cores.",
            at_least=0,
        ),
    ] = 0
    enable_signature_method_name_check: Annotated[
        bool,
        Setting(
            "Runtime",
            "Check a signature's method_name in Classify and Regress.",
            page="check a signature's `method_name` in Classify and Regress",
        ),
    ] = False
    enable_serialization_as_tensor_content: Annotated[
        bool,
        Setting(
            "Runtime",
            "Answer gRPC Predict with tensor_content, not typed fields.",
            page="answer gRPC Predict with `tensor_content`, not typed fields",
        ),
    ] = False
    monitoring_config_file: Annotated[
        Path | None,
        Setting("Operations", "A file with a MonitoringConfig: where Prometheus finds the metrics."),
    ] = None
    enable_profiler: Annotated[bool, Setting("Operations", "Answer TensorBoard's profiler on gRPC's port.")] = True
    log_format: Annotated[
        LogFormat,
        Setting(
            "Operations",
            "The server's own log: lines for people, or JSON.",
            page="the server's own log, on stderr: `text`, or `json`, an object a line",
            variables=("TPUSERVE_LOG_FORMAT",),
        ),
    ] = "text"
