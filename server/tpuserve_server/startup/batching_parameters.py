"""Readers of BatchingParameters files: --batching_parameters_file and a version's batching_params.pbtxt."""

from pathlib import Path

from tpuserve_formats.messages._proto import batching_parameters_pb2
from tpuserve_server.core.batching.parameters import UNSET_PARAMETERS, BatchingParameters
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.startup.text_format import ConfigError, parse, read_text

MODEL_FILE = "batching_params.pbtxt"


def read_batching_parameters(path: Path, flags: BatchingParameters = UNSET_PARAMETERS) -> BatchingParameters:
    """Return the parameters in the file at `path`, overridden by `flags`. Blocks.

    Raises:
        ConfigError: the file cannot be read, is not a BatchingParameters, or has parameters that conflict.
    """
    return flags.over(_parse(read_text(path), path))


def read_model_batching_parameters(version_path: Path) -> BatchingParameters | None:
    """Return a version's own parameters, or None if it has no file for them. Blocks.

    The file name is upstream's (servables/tensorflow/bundle_factory_util.cc).

    Raises:
        InvalidArgument: `read_batching_parameters` would refuse the file. Clients may see the message, so it names no
            directory.
    """
    path, shown = version_path / MODEL_FILE, Path(MODEL_FILE)
    if not path.exists():
        return None
    try:
        return _parse(read_text(path, shown), shown)
    except ConfigError as error:
        raise InvalidArgument(str(error)) from None


def _parse(text: str, path: Path) -> BatchingParameters:
    # It imports numpy, which the supervisor otherwise does not need.
    from tpuserve_server.wire.model_server_config import batching_parameters

    message = parse(text, batching_parameters_pb2.BatchingParameters(), path)
    try:
        return batching_parameters(message)
    except InvalidArgument as error:
        raise ConfigError(f"{error.message}. Invalid BatchingParameters file: '{path}'") from None
