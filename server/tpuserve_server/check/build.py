"""Construction of the check of the configured models."""

from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from tpuserve_formats.errors import FormatError
from tpuserve_formats.safety.graph import read_graphs
from tpuserve_server.check.models import ModelCheck
from tpuserve_server.command.options import loading_options, required_signatures
from tpuserve_server.command.settings import Settings
from tpuserve_server.command.storage import model_storage, remote_storage
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.executors.pjrt.manifest import ProgramManifest
from tpuserve_server.executors.runtimes import JAX, TENSORFLOW
from tpuserve_server.executors.tensorflow import screening
from tpuserve_server.executors.tflite.candidate import MODEL_FILE
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.request_log.writer import LogWriter

# `saved_model.pbtxt` is checked at load, because only TensorFlow parses it as its loader does.
_FILE = "saved_model.pb"


def check_operations(settings: Settings, version: Path) -> None:
    """Check the graph that the server would load, without TensorFlow. Reads the whole file; blocks.

    Raises:
        FailedPrecondition: the graph has operations that the server refuses.
        InvalidArgument: the file is damaged, or an asset is outside the version.
    """
    file = version / _FILE
    if not file.is_file():
        return
    try:
        graphs = list(read_graphs(file.read_bytes()))
    except (FormatError, DecodeError) as error:
        raise InvalidArgument(f"{_FILE} is damaged. Copy or export the version again") from error
    screening.check_operations(graphs, settings.tensorflow.tags, settings.safety.allowed_ops)


def check_runtime(settings: Settings, version: Path) -> None:
    """Check that an installed package runs the version, on a device that may be missing. Blocks.

    Raises:
        MissingRuntime: only TensorFlow runs the version, and it is not installed.
        FailedPrecondition: the version needs its device programs, and they cannot be used.
    """
    if TENSORFLOW.is_installed:
        return
    if settings.tflite.preferred and (version / MODEL_FILE).is_file():
        return
    if not JAX.is_installed or ProgramManifest.read(version) is None:
        raise TENSORFLOW.missing("the version's SavedModel needs")


def build_model_check(settings: Settings) -> ModelCheck:
    """Build the check of the configured models for `--check_config`, with the checks of a start."""
    loading = loading_options(settings)
    storage = model_storage(settings, remote_storage(settings))
    logs = RequestLogs(settings.request_log, LogWriter(settings.rotation, SystemClock(), PrometheusMetrics()))
    own_batching = () if loading.read_parameters is None else (loading.read_parameters,)
    version_checks = (*own_batching, partial(check_runtime, settings), partial(check_operations, settings))
    return ModelCheck(
        storage, (storage.check, logs.check, loading.check), version_checks, required_signatures(settings)
    )
