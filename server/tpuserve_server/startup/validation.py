"""Validation of settings from flags, the environment or another process. An error names every mistake."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.setting import Setting
from tpuserve_server.startup.profiles import check_profile, profile_values
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
    elif kind in (Path | None, str | None):
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
