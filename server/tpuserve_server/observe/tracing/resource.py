"""Resource: the description of this process in its spans."""

import os
import uuid
from collections.abc import Mapping
from importlib import metadata
from typing import Final
from urllib.parse import unquote

from tpuserve_server.observe.tracing.message import Value

SERVICE_NAME: Final = "tpuserve"


def find_resource(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the attributes. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override those of the server."""
    attributes: dict[str, Value] = {
        "service.name": SERVICE_NAME,
        "service.version": version(),
        "service.instance.id": str(uuid.uuid4()),
        "process.pid": os.getpid(),
    }
    for entry in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = entry.partition("=")
        if equals and name.strip():
            attributes[name.strip()] = unquote(value.strip())
    if service := environment.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = service
    return attributes


def version() -> str:
    """Return the version of the server's distribution."""
    return metadata.version("tpuserve-server")
