"""Settings for models: names, base paths, the storage cache, and the sources of batching parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.setting import MAX_WAIT_S, Setting


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Models to serve, and the intervals of the polls for changes.

    Raises:
        InvalidArgument: no model is named.
    """

    model_name: Annotated[
        str,
        Setting(
            "Models",
            "Name that requests use.",
            variables=("MODEL_NAME",),
            min_length=1,
        ),
    ] = "default"
    # An absolute path of a directory, or a URI such as gs://bucket/models/m. Ignored if model_config_file is set.
    model_base_path: Annotated[
        str | None,
        Setting(
            "Models",
            "Folder of version folders, or its URI. Without it MODEL_BASE_PATH/MODEL_NAME, as in TensorFlow Serving's "
            "image.",
            page="folder of version folders, or its URI; without it `$MODEL_BASE_PATH/$MODEL_NAME`",
        ),
    ] = None
    model_config_file: Annotated[
        Path | None,
        Setting(
            "Models",
            "Models from a file with a ModelServerConfig; model_name and model_base_path are not looked at then.",
        ),
    ] = None
    model_config_file_poll_wait_seconds: Annotated[
        float,
        Setting("Models", "Between looks for changes of that file; 0 reads it once.", at_least=0, at_most=MAX_WAIT_S),
    ] = 0.0
    file_system_poll_wait_seconds: Annotated[
        float,
        Setting("Models", "Between looks for new versions; 0 looks once.", at_least=0, at_most=MAX_WAIT_S),
    ] = 1.0
    allow_version_labels_for_unavailable_models: Annotated[
        bool,
        Setting("Models", "Take a label for a version that is not available yet, where the label is not in use."),
    ] = False

    def __post_init__(self) -> None:
        if self.model_base_path is None and self.model_config_file is None:
            raise InvalidArgument(
                "no model to serve: give --model_base_path=FOLDER (the folder that holds version folders such as 1/), "
                "--model_config_file=FILE, or set MODEL_BASE_PATH and MODEL_NAME"
            )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Cache for versions from object stores. Its default is a directory among the user's caches."""

    storage_cache_dir: Annotated[
        Path | None,
        Setting(
            "Models",
            "Where versions from object stores are copied to.",
            shown_default="tpuserve in $XDG_CACHE_HOME or ~/.cache",
            page_default="`tpuserve` in `$XDG_CACHE_HOME` or `~/.cache` (`/var/cache` without a home)",
        ),
    ] = None
    storage_cache_max_bytes: Annotated[
        int, Setting("Models", "Most bytes of those copies; what is not loaded makes way.", at_least=0)
    ] = 64 * 2**30


@dataclass(frozen=True, slots=True)
class BatchingSource:
    """Switch of batching, and the sources of its parameters.

    Raises:
        InvalidArgument: `batching_parameters_file` is set, but batching is not enabled.
    """

    enable_batching: Annotated[
        bool | None,
        Setting(
            "Batching",
            "Unset: batch what the exporter has checked. true: whatever has a free first dimension.",
            page_default="unset",
        ),
    ] = None
    batching_parameters_file: Annotated[
        Path | None, Setting("Batching", "A file with BatchingParameters; needs enable_batching.")
    ] = None
    enable_per_model_batching_parameters: Annotated[
        bool,
        Setting(
            "Batching",
            "Read batching_params.pbtxt from each version's folder.",
            page="read `batching_params.pbtxt` from each version's folder",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.batching_parameters_file is not None and not self.enable_batching:
            # TensorFlow Serving's rule and message.
            raise InvalidArgument(
                "batching_parameters_file is set without setting enable_batching to true: add --enable_batching"
            )
