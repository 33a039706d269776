"""WarmupOptions: what runs before a version is available. Imports nothing heavy: the command line is made of it."""

from dataclasses import dataclass
from typing import Annotated

from tpuserve_server.core.setting import Setting


@dataclass(frozen=True, slots=True)
class WarmupOptions:
    """Off or on, how often each record is run (0, TensorFlow Serving's default, is once), and which checks hold."""

    enabled: Annotated[
        bool,
        Setting(
            "Operations",
            "Run recorded requests and every batch size before a version is available.",
            name="enable_model_warmup",
        ),
    ] = True
    iterations: Annotated[
        int,
        Setting(
            "Operations",
            "Times that each recorded request is run; 0: once.",
            name="num_request_iterations_for_warmup",
            at_least=0,
        ),
    ] = 0
    # enable_signature_method_name_check, which the front-ends have too.
    check_method_names: bool = False
