"""Resource: the description of this process in its spans."""

import os
import uuid
from collections.abc import Mapping
from importlib import metadata

from tpuserve_server.telemetry.tracing.message import Value
from tpuserve_server.telemetry.tracing.service_name import SERVICE_NAME, given_attributes


def find_resource(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the attributes. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override those of the server."""
    attributes: dict[str, Value] = {
        "service.name": SERVICE_NAME,
        "service.version": version(),
        "service.instance.id": str(uuid.uuid4()),
        "process.pid": os.getpid(),
    }
    attributes.update(given_attributes(environment))
    return attributes


def version() -> str:
    """Return the version of the server's distribution."""
    return metadata.version("tpuserve-server")
