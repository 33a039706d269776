"""The documents of /debug: the status of the server with its models, and the slowest requests with their stages."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.loader import VersionDetails
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.core.terms.types import ModelSpec, ServableId, Signature, State, TensorSpec, VersionStatus
from tpuserve_server.observe.metrics.live_measurements import VersionOrigin
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.slow_requests import WINDOW_S
from tpuserve_server.protocols.console.report_files import list_reports
from tpuserve_server.protocols.console.sources import ConsoleSources

_MILLISECONDS: Final = 1e3
# Most sizes of a signature whose costs the document has.
_MOST_COSTS: Final = 32
_NO_ORIGIN: Final = VersionOrigin()
_NO_DETAILS: Final = VersionDetails()
_NONE_QUEUED: Final = QueueDepth()


def describe_status(sources: ConsoleSources, *, may_control: bool) -> dict[str, Any]:
    """Return the status as JSON. Reads directories, so it blocks.

    Without `may_control` the document has no values of flags and no socket: both may name paths.
    """
    return {
        "server": _describe_server(sources, may_control=may_control),
        "may_control": may_control,
        "models": _describe_models(sources.service, sources.figures.origins()),
        "devices": [
            {"name": device.name, "busy_s": device.busy_s(), "memory_bytes": dict(device.memory_bytes())}
            for device in sources.figures.devices()
        ],
        "access": None if sources.credentials is None else _describe_access(sources.credentials),
        "budgets": _describe_budgets(sources),
        "in_flight": dict(sources.in_flight()),
        "build": dict(sources.facts.packages),
        "flags": [
            {"name": flag.name, "value": flag.value, "default": flag.default} if may_control else {"name": flag.name}
            for flag in sources.facts.flags
        ],
    }


def _describe_server(sources: ConsoleSources, *, may_control: bool) -> dict[str, Any]:
    facts = sources.facts
    return {
        "version": facts.build.version,
        "addresses": sources.addresses.describe(may_control=may_control),
        "certificates": _describe_certificates(sources, may_control=may_control),
        "pid": os.getpid(),
        "python": facts.build.python,
        "started_unix_s": facts.started_unix_s,
        "uptime_s": sources.uptime_s,
        "state": sources.service.state().value,
        "reason": sources.service.why_not_ready(),
        "configuration_sha256": sources.service.configuration_sha256(),
    }


def _describe_certificates(sources: ConsoleSources, *, may_control: bool) -> dict[str, Any] | None:
    """Return the certificates without their texts. The reason of a failed reload names a path."""
    status = sources.certificates()
    if status is None:
        return None
    failed = bool(status.reload_failure)
    reason = {"reload_failure": status.reload_failure} if may_control else {}
    return {"expires_unix_s": dict(status.expires_unix_s), "reload_failed": failed, **reason}


def _describe_budgets(sources: ConsoleSources) -> list[dict[str, Any]]:
    """Return the budgets that all requests share, and the limits of each request, which have no common use."""
    budgets = sources.budgets
    return [
        {
            "name": "receiving",
            "in_use_bytes": budgets.receiving.held_bytes,
            "limit_bytes": budgets.receiving.total_bytes,
        },
        {"name": "sending", "in_use_bytes": budgets.sending.held_bytes, "limit_bytes": budgets.sending.total_bytes},
        {"name": "decoded", "in_use_bytes": None, "limit_bytes": budgets.decoded.size_bytes},
        {"name": "response", "in_use_bytes": None, "limit_bytes": budgets.response.size_bytes},
    ]


def _describe_access(files: CredentialFiles) -> dict[str, Any]:
    known = files.authenticator.known
    return {
        "api_keys": len(known.credentials.keys),
        "certificates": len(known.credentials.certificates),
        "tokens": known.tokens is not None,
        "anonymous_roles": sorted(role.value for role in files.authenticator.anonymous.roles),
        "problem": files.problem,
    }


def _describe_models(service: InferenceService, origins: Mapping[ServableId, VersionOrigin]) -> list[dict[str, Any]]:
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
        "evaluation": known.evaluation,
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


# Microseconds, as in the header `server-timing`.
_DIGITS: Final = 3


def describe_slow(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return these requests as JSON, in their order."""
    return {"window_s": WINDOW_S, "requests": [_describe_request(record) for record in records]}


def _describe_request(record: RequestRecord) -> dict[str, Any]:
    return {
        "ended": datetime.fromtimestamp(record.ended_unix_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "protocol": record.protocol,
        "method": record.method,
        "model": record.model,
        "version": record.version,
        "signature": record.signature,
        "code": record.code.name,
        "latency_ms": _ms(record.latency_s),
        "request_id": record.request_id,
        "trace_id": "" if record.trace is None else record.trace.trace_id,
        "cached": record.is_cached,
        "stages": [
            {
                "name": stage.name,
                "start_ms": _ms(stage.started_s - record.started_s),
                "duration_ms": _ms(stage.duration_s),
                "reason": stage.reason,
            }
            for stage in record.stages
            if stage.name != "total"
        ],
    }


def _ms(duration_s: float) -> float:
    return round(duration_s * _MILLISECONDS, _DIGITS)
