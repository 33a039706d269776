"""Looks up a request by its bytes in the response cache, for protocols whose request log needs the arrays."""

from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.observe.request_log.request_logs import RequestLogs


async def recall_unlogged(
    service: InferenceService, logs: RequestLogs | None, spec: ModelSpec, kind: str, body: bytes
) -> Recall | None:
    """Look up a request like `InferenceService.recall`, or return None for a model with a request log."""
    if logs is not None and logs.has_log(spec.name):
        return None
    return await service.recall(spec, kind, body)
