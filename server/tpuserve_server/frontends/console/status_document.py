"""The document of /debug/status: everything that an operator asks about a server."""

import os
from typing import Any

from tpuserve_server.frontends.console.model_document import describe_models
from tpuserve_server.frontends.console.sources import ConsoleSources
from tpuserve_server.identity.files import CredentialFiles


def describe_status(sources: ConsoleSources, *, may_control: bool) -> dict[str, Any]:
    """Return the status as JSON. Reads directories, so it blocks.

    Without `may_control` the document has no values of flags and no socket: both may name paths.
    """
    return {
        "server": _describe_server(sources, may_control=may_control),
        "may_control": may_control,
        "models": describe_models(sources.service, sources.figures.origins()),
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
