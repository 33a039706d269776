"""Validation of settings from flags, the environment or another process. An error names every mistake.

A profile is a set of defaults for a kind of network. A flag or its environment variable overrides them.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.startup.settings import Flag, Settings, flags, make_options, option_classes


def read_settings(**values: Any) -> Settings:  # noqa: ANN401 - whatever comes, pydantic judges it
    """Create settings from flag values by name, each as text or as a typed value. The profile gives missing values.

    Raises:
        ValidationError: a name is unknown, a value is wrong, or values conflict.
    """
    return _settings(_checked_flags().model_validate({**profile_values(values.get("profile", "")), **values}))


def read_settings_json(text: str) -> Settings:
    """Read the output of `settings_json`. Raises ValidationError as `read_settings` does."""
    return _settings(_checked_flags().model_validate_json(text))


def settings_json(settings: Settings) -> str:
    """Return settings as JSON for another process."""
    return _checked_flags().model_construct(**settings.values()).model_dump_json()


class _CheckedFlags(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _check_together(self) -> "_CheckedFlags":
        if wrong := list(_complaints(_values(self))):
            raise ValueError("\n".join(wrong))
        return self


def _complaints(values: Mapping[str, Any]) -> Iterator[str]:
    yield from check_profile(values)
    for options in option_classes():
        try:
            make_options(options, values)
        except ServingError as error:
            yield error.message


def _settings(checked: _CheckedFlags) -> Settings:
    return Settings.of(_values(checked))


def _values(checked: _CheckedFlags) -> dict[str, Any]:
    return {flag.name: getattr(checked, flag.name) for flag in flags()}


@cache
def _checked_flags() -> type[_CheckedFlags]:
    """Return a model with a field for each flag."""
    fields: dict[str, Any] = {flag.name: (_field_type(flag), flag.default) for flag in flags()}
    return create_model("Settings", __base__=_CheckedFlags, **fields)


def _field_type(flag: Flag) -> Any:  # noqa: ANN401 - a type expression
    setting = flag.setting
    bounds = Field(ge=setting.at_least, le=setting.at_most, lt=setting.below, min_length=setting.min_length)
    return Annotated[flag.type, bounds, BeforeValidator(_reader(flag.type, setting))]


def _reader(kind: Any, setting: Setting) -> Callable[[Any], Any]:  # noqa: ANN401 - a type expression
    """Return a function that parses the flag's text. Other values go to pydantic unchanged."""
    if setting.parse is not None:
        parse = setting.parse
    elif kind in (Path | None, str | None, FileName | None):
        parse = _none_if_empty
    elif kind == tuple[str, ...]:
        parse = _comma_separated
    else:
        return _unchanged
    return lambda value: parse(value) if isinstance(value, str) else value


def _none_if_empty(text: str) -> str | None:
    """Return None for an empty text, because scripts unset a flag with `--batching_parameters_file=`."""
    return text or None


def _comma_separated(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _unchanged(value: Any) -> Any:  # noqa: ANN401 - pydantic judges it
    return value


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
    "load_reports": "never",
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
    if values["ssl_config_file"] is None and values["tls_cert_file"] is None:
        yield (
            "profile edge needs ssl_config_file or tls_cert_file: without TLS, keys and requests cross the network in "
            "the clear"
        )
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
