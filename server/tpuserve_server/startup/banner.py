"""Banner that `tpuserve serve` prints once: models, versions, device, buckets, addresses."""

import contextlib
import logging
import re
import threading
from collections.abc import Sequence

import click

from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import NotFound
from tpuserve_server.core.terms.types import ModelSpec, State, VersionStatus
from tpuserve_server.hosts.application import Listening

logger = logging.getLogger(__name__)

# Upstream logs localhost for a REST port on every address. Browsers do not open 0.0.0.0 on every system.
_EVERYWHERE = re.compile(r"^(0\.0\.0\.0|\[::\])(?=:)")


def print_banner(service: InferenceService, listening: Listening, *, has_console: bool) -> None:
    """Print the banner once, when the service is ready: now, or on the thread whose change makes it ready."""
    addresses = _addresses(listening, has_console)
    lock = threading.Lock()
    printed = False

    def on_change() -> None:
        nonlocal printed
        with lock:
            if printed or not service.is_ready():
                return
            printed = True
        click.echo(_format_banner(_statuses(service), addresses))
        _log_addresses(listening)

    if not service.is_ready():
        waiting = f"tpuserve is listening, but not ready: {service.why_not_ready()}"
        click.echo("\n".join([waiting, *addresses]))
    service.subscribe(on_change)
    on_change()


def _format_banner(versions: Sequence[VersionStatus], addresses: Sequence[str]) -> str:
    """Return the banner: each version that serves, with notes, each version that has failed, then the addresses."""
    lines = ["", "tpuserve is ready"]
    for status in versions:
        name = f"{status.servable.name} version {status.servable.version}"
        if status.state is State.AVAILABLE:
            lines.append(f"  model    {name}")
            lines.extend(f"           {note}" for note in status.notes)
        elif status.error:
            lines.append(f"  failed   {name}: {status.error}")
    return "\n".join([*lines, *addresses])


def _log_addresses(listening: Listening) -> None:
    """Log upstream's lines (model_servers/server.cc). Scripts wait for them as a sign that the models are loaded."""
    if listening.grpc:
        logger.info("Running gRPC ModelServer at %s ...", listening.grpc)
    if listening.grpc_socket:
        logger.info("Running gRPC ModelServer at UNIX socket %s ...", listening.grpc_socket.removeprefix("unix:"))
    if listening.rest:
        logger.info("Exporting HTTP/REST API at:%s ...", _EVERYWHERE.sub("localhost", listening.rest))


def _statuses(service: InferenceService) -> list[VersionStatus]:
    found: list[VersionStatus] = []
    for name in service.models():
        # A new model may have no version yet.
        with contextlib.suppress(NotFound):
            found += service.status(ModelSpec(name))
    return found


def _addresses(listening: Listening, has_console: bool) -> list[str]:
    lines = [f"  gRPC     {address}" for address in (listening.grpc, listening.grpc_socket) if address]
    if listening.rest:
        scheme = "https" if listening.tls else "http"
        lines.append(f"  REST     {scheme}://{listening.rest}/v1/models")
        if has_console:
            lines.append(f"  console  {scheme}://{_EVERYWHERE.sub('localhost', listening.rest)}/console")
    return lines
