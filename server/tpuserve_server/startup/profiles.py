"""Profiles: defaults of flags for a kind of network, which a flag or its environment variable overrides."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

Profile: TypeAlias = Literal["default", "edge"]

# Clients on the open internet, with certificates and keys. docs/how-to/operate/edge.md gives the reasons and the costs.
_EDGE: Final[Mapping[str, Any]] = {
    "header_timeout_seconds": 15.0,
    # Streams as Envoy recommends for the edge. Clients beyond a NAT leave connections behind.
    "grpc_channel_arguments": (
        ("grpc.max_concurrent_streams", 100),
        ("grpc.max_connection_idle_ms", 300_000),
        ("grpc.max_connection_age_ms", 3_600_000),
    ),
    "max_request_bytes": 8 << 20,
    "max_response_bytes": 64 << 20,
    "enable_profiler": False,
    "access_log": "errors",
}
# One of these flags makes the server identify its clients.
_IDENTIFYING: Final = ("credentials_file", "jwt_jwks_file", "anonymous_roles")
_PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {"default": {}, "edge": _EDGE}


def profile_values(profile: str) -> Mapping[str, Any]:
    """Return the values of a profile by flag, or none for an unknown profile, which the validation refuses."""
    return _PROFILES.get(profile, {})


def check_profile(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of flags that the profile needs and that have no default."""
    if values["profile"] != "edge":
        return
    if values["ssl_config_file"] is None:
        yield "profile edge needs ssl_config_file: without TLS, keys and requests cross the network in the clear"
    if all(values[name] is None for name in _IDENTIFYING):
        yield (
            "profile edge needs credentials_file, jwt_jwks_file or anonymous_roles, which say what each client may do"
        )


def describe_profile(profile: str) -> str:
    """Return the values of a profile as flags."""
    return " ".join(f"--{name}={flag_text(value)}" for name, value in profile_values(profile).items())


def flag_text(value: Any) -> str:  # noqa: ANN401 - the value of any setting
    """Return a value as the text of its flag."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(f"{name}={one}" for name, one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
