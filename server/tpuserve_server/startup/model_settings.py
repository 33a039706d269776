"""Settings for models: names, base paths, the storage cache, and the sources of batching parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.name_rules import check_name, check_path
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting

# Variable of Vertex AI's contract.
_STORAGE_URI = "AIP_STORAGE_URI"
# Variable of TensorFlow Serving's image: the directory of its models.
BASE_ROOT_VARIABLE = "MODEL_BASE_PATH"
# Name of the setting for messages.
ARTIFACT_SETTING = f"model_artifact_uri ({_STORAGE_URI})"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Models to serve, and the intervals of the polls for changes.

    Raises:
        InvalidArgument: no model is named, `model_artifact_uri` is a relative path, or a text has control characters.
    """

    model_name: Annotated[
        str, Setting("Models", "Name of the model in requests.", variables=("MODEL_NAME",), min_length=1)
    ] = "default"
    # An absolute path of a directory, or a URI such as gs://bucket/models/m. Ignored if model_config_file is set.
    model_base_path: Annotated[
        str | None,
        Setting(
            "Models",
            "Directory that contains the version directories, or its URI. Default: MODEL_BASE_PATH/MODEL_NAME, as in "
            "TensorFlow Serving's image.",
        ),
    ] = None
    model_artifact_uri: Annotated[
        str | None,
        Setting(
            "Models",
            "Directory or URI of a model: of its version directories, or of one version, which may have any name. Used "
            "without model_base_path and model_config_file.",
            variables=(_STORAGE_URI,),
        ),
    ] = None
    model_config_file: Annotated[
        Path | None,
        Setting(
            "Models",
            "File with a ModelServerConfig that lists the models. The server then ignores model_name and "
            "model_base_path.",
        ),
    ] = None
    model_config_file_poll_wait_seconds: Annotated[
        float,
        Setting(
            "Models",
            "Interval between checks of that file for changes; 0 checks after SIGHUP alone.",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 0.0
    file_system_poll_wait_seconds: Annotated[
        float,
        Setting("Models", "Interval between checks for new versions; 0 checks once.", at_least=0, at_most=MAX_WAIT_S),
    ] = 1.0
    allow_version_labels_for_unavailable_models: Annotated[
        bool, Setting("Models", "Accept a new label for a version that is not available yet.")
    ] = False
    allow_reload_without_models: Annotated[
        bool, Setting("Models", "Accept a reload or a changed configuration file that removes every model.")
    ] = False
    require_signed: Annotated[
        Path | None,
        Setting(
            "Models", "File with public keys (PEM). The server loads only versions that one of these keys has signed."
        ),
    ] = None

    def __post_init__(self) -> None:
        artifact = self.model_artifact_uri
        check_name("model_name", self.model_name)
        check_path("model_base_path", self.model_base_path or "")
        check_path(ARTIFACT_SETTING, artifact or "")
        if artifact is not None and not (artifact.startswith("/") or "://" in artifact):
            raise InvalidArgument(
                f"{ARTIFACT_SETTING} must be an absolute path or a URI such as gs://bucket/model; was {artifact!r}"
            )
        if self.model_base_path is None and self.model_config_file is None and artifact is None:
            raise InvalidArgument(
                "the server has no model to serve. Set --model_base_path=DIRECTORY (the directory that contains "
                "version directories such as 1/) or --model_config_file=FILE, or the variables MODEL_BASE_PATH and "
                "MODEL_NAME"
            )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Cache for versions from object stores. Its default is a directory among the user's caches."""

    storage_cache_dir: Annotated[
        Path | None,
        Setting(
            "Models",
            "Directory for copies of versions from object stores.",
            shown_default="tpuserve in $XDG_CACHE_HOME or ~/.cache",
            is_cache=True,
        ),
    ] = None
    storage_cache_max_bytes: Annotated[
        int,
        Setting(
            "Models", "Maximum total size of those copies; the server evicts copies that are not in use.", at_least=0
        ),
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
            "Unset: batch the signatures that the exporter has checked. true: batch every signature whose first "
            "dimension is free.",
        ),
    ] = None
    batching_parameters_file: Annotated[
        Path | None, Setting("Batching", "File with BatchingParameters; requires enable_batching.")
    ] = None
    enable_per_model_batching_parameters: Annotated[
        bool, Setting("Batching", "Read batching_params.pbtxt from each version directory.")
    ] = False

    def __post_init__(self) -> None:
        if self.batching_parameters_file is not None and not self.enable_batching:
            # TensorFlow Serving's rule and message.
            raise InvalidArgument(
                "batching_parameters_file is set without setting enable_batching to true: add --enable_batching"
            )
