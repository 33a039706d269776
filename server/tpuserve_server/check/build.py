"""Construction of the check of the configured models."""

from functools import partial

from tpuserve_server.check.models import ModelCheck
from tpuserve_server.check.operations import check_operations
from tpuserve_server.check.runtime import check_runtime
from tpuserve_server.command.options import loading_options, required_signatures
from tpuserve_server.command.settings import Settings
from tpuserve_server.command.storage import model_storage, remote_storage
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.request_log.request_logs import RequestLogs
from tpuserve_server.request_log.writer import LogWriter


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
