"""Settings for the server as a whole, and settings that several of its parts share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpuserve_server.command.profiles import Profile
from tpuserve_server.core.setting import Setting
from tpuserve_server.logs.log_format import LogFormat


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings that `app.py` uses, or passes to more than one part."""

    profile: Annotated[
        Profile,
        Setting(
            "Listening",
            "Defaults of other flags. edge: for clients on the open internet; needs --ssl_config_file and a flag of "
            "Access.",
            page="defaults of other flags; `edge`: for clients on the [open internet](../how-to/operate/edge.md), "
            "needs `--ssl_config_file` and a flag of Access",
        ),
    ] = "default"
    device_slots: Annotated[
        int,
        Setting(
            "Batching",
            "Maximum number of batches of all models that run at the same time; 0: no limit while all models have the "
            "same scheduling_weight, otherwise the number of cores.",
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
            "Send tensors of gRPC Predict as tensor_content instead of typed fields.",
            page="send tensors of gRPC Predict as `tensor_content` instead of typed fields",
        ),
    ] = False
    lenient_shapes: Annotated[
        bool,
        Setting(
            "Runtime",
            "Pass inputs to a model whose rank or dimensions differ from its signature, as TensorFlow Serving does. "
            "Some operations end the server's process for them.",
            page="pass inputs to a model whose rank or dimensions differ from its signature, as TensorFlow Serving "
            "does; some operations end the server's process for them "
            "([why](../explanation/decisions/0079-inputs-have-the-shapes-of-the-signature.md))",
        ),
    ] = False
    monitoring_config_file: Annotated[
        Path | None,
        Setting("Operations", "File with a MonitoringConfig: the path of the metrics for Prometheus."),
    ] = None
    enable_profiler: Annotated[bool, Setting("Operations", "Serve TensorBoard's profiler on the gRPC port.")] = True
    log_format: Annotated[
        LogFormat,
        Setting(
            "Operations",
            "Format of the server's log: lines of text, colored lines for a console, or JSON. auto: console on a "
            "terminal, otherwise text.",
            page="format of the server's [log](../how-to/operate/logs.md) on stderr: `text`, `console` with colors, "
            "`json` with one object per line, or `auto`: `console` on a terminal, otherwise `text`",
            variables=("TPUSERVE_LOG_FORMAT",),
        ),
    ] = "auto"
