"""Name of this server in traces, from OpenTelemetry's environment variables. Light imports, for the supervisor."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

SERVICE_NAME: Final = "tpuserve"
_KEY: Final = "service.name"


def given_attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of OTEL_RESOURCE_ATTRIBUTES, and the name of OTEL_SERVICE_NAME before theirs."""
    attributes = {}
    for entry in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, equals, value = entry.partition("=")
        if equals and name.strip():
            attributes[name.strip()] = unquote(value.strip())
    if service := environment.get("OTEL_SERVICE_NAME", "").strip():
        attributes[_KEY] = service
    return attributes


def service_name(environment: Mapping[str, str]) -> str:
    """Return the name of the service."""
    return given_attributes(environment).get(_KEY, SERVICE_NAME)
