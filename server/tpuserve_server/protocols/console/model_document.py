"""The models of /debug/status: versions, states, signatures, batching, costs and reports."""

from collections.abc import Mapping
from typing import Any, Final

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.loader import VersionDetails
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, TensorSpec, VersionStatus
from tpuserve_server.observe.metrics.live_measurements import VersionOrigin
from tpuserve_server.protocols.console.report_files import list_reports

_MILLISECONDS: Final = 1e3
# Most sizes of a signature whose costs the document has.
_MOST_COSTS: Final = 32
_NO_ORIGIN: Final = VersionOrigin()
_NO_DETAILS: Final = VersionDetails()
_NONE_QUEUED: Final = QueueDepth()


def describe_models(service: InferenceService, origins: Mapping[ServableId, VersionOrigin]) -> list[dict[str, Any]]:
    """Return every configured model with all of its versions, newest first."""
    return [_describe_model(service, name, origins) for name in service.models()]


def _describe_model(
    service: InferenceService, name: str, origins: Mapping[ServableId, VersionOrigin]
) -> dict[str, Any]:
    try:
        statuses = service.status(ModelSpec(name))
    except ServingError:
        # The model has no version yet, or another client has removed it.
        statuses = []
    details = {status.servable: service.details(status.servable) for status in statuses}
    is_ensemble = any(one is not None and one.is_ensemble for one in details.values())
    return {
        "name": name,
        "ready": any(status.state is State.AVAILABLE for status in statuses),
        "reason": service.why_no_versions(name),
        "labels": service.labels(name),
        "kind": "ensemble" if is_ensemble else "model",
        "versions": [
            _describe_version(status, details[status.servable], origins.get(status.servable, _NO_ORIGIN))
            for status in statuses
        ],
    }


def _describe_version(status: VersionStatus, details: VersionDetails | None, origin: VersionOrigin) -> dict[str, Any]:
    known, servable = details or _NO_DETAILS, status.servable
    return {
        "version": servable.version,
        "state": status.state.name,
        "code": Code(status.error_code).name,
        "reason": status.error or status.waits,
        "device": origin.device,
        "fallback": origin.fallback,
        "load_s": known.load_s,
        "warmup_s": origin.warmup_s,
        "warmup_records": origin.warmup_records,
        "class_labels": len(known.labels),
        "signatures": [_describe_signature(signature, known) for signature in known.signatures.values()],
        "cache": None
        if known.cache is None
        else {"hits": known.cache.hits, "misses": known.cache.misses, "size_bytes": known.cache.size_bytes},
        "reports": [] if known.path is None else list_reports(servable, known.path),
    }


def _describe_signature(signature: Signature, details: VersionDetails) -> dict[str, Any]:
    return {
        "name": signature.name,
        "method_name": signature.method_name,
        "inputs": [_describe_tensor(spec) for spec in signature.inputs.values()],
        "outputs": [_describe_tensor(spec) for spec in signature.outputs.values()],
        "batching": _describe_batching(signature.name, details),
        "costs": [
            {
                "bucket": cost.rows,
                "mean_ms": cost.mean_s * _MILLISECONDS,
                # Padded lengths of sequences, which cost differently.
                **({"lengths": list(curve.lengths)} if curve.lengths else {}),
            }
            for curve in details.costs
            if curve.signature_name == signature.name
            for cost in curve.shown(_MOST_COSTS)
        ],
    }


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "dtype": BY_DTYPE[spec.dtype].enum_name,
        "shape": None if spec.shape is None else list(spec.shape),
    }


def _describe_batching(name: str, details: VersionDetails) -> dict[str, Any] | None:
    options = details.batching.get(name)
    if options is None:
        return None
    queued, objective = details.queued.get(name, _NONE_QUEUED), options.objective
    return {
        "max_batch_size": options.max_batch_size,
        "batch_sizes": list(options.buckets),
        "timeout_ms": options.timeout_s * _MILLISECONDS,
        "objective_ms": None if objective is None else objective.latency_s * _MILLISECONDS,
        "queued_requests": queued.requests,
        "queued_rows": queued.rows,
    }
