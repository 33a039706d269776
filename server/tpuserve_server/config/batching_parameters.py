"""BatchingParameters on disk: --batching_parameters_file, and batching_params.pbtxt in a version's own folder."""

from pathlib import Path

from tpuserve_formats.messages._proto import batching_parameters_pb2
from tpuserve_server.config.text_format import ConfigError, parse, read_text
from tpuserve_server.core.batching.parameters import NOTHING_SAID, BatchingParameters
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.wire.batching_parameters import batching_parameters

MODEL_FILE = "batching_params.pbtxt"


def read_batching_parameters(path: Path, flags: BatchingParameters = NOTHING_SAID) -> BatchingParameters:
    """What the file at `path` says, and `flags` over it. Blocking.

    Raises:
        ConfigError: It cannot be read, is no BatchingParameters, or says what does not fit together.
    """
    return flags.over(_parse(read_text(path), path))


def read_model_batching_parameters(version_path: Path) -> BatchingParameters | None:
    """What a version says of itself (servables/tensorflow/bundle_factory_util.cc); None for nothing. Blocking.

    Raises:
        InvalidArgument: as ConfigError above; clients may see it, so it names no folder.
    """
    path, shown = version_path / MODEL_FILE, Path(MODEL_FILE)
    if not path.exists():
        return None
    try:
        return _parse(read_text(path, shown), shown)
    except ConfigError as error:
        raise InvalidArgument(str(error)) from None


def _parse(text: str, path: Path) -> BatchingParameters:
    message = parse(text, batching_parameters_pb2.BatchingParameters(), path)
    try:
        return batching_parameters(message)
    except InvalidArgument as error:
        raise ConfigError(f"{error.message}. Invalid BatchingParameters file: '{path}'") from None
