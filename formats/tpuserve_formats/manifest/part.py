"""Base class of the manifest's models, and the marker for fields that the reader ignores."""

from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticUseDefault

# Padding value of an input.
PadValue: TypeAlias = bool | int | float | str


class Part(BaseModel):
    """One object of the manifest. Readers ignore unknown fields, which later exporters may write."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _ignore_json(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:  # noqa: ANN401
    if info.mode == "json":
        raise PydanticUseDefault
    return check(value)


# Marks a field that only the exporter writes. Readers accept any JSON for it and use the default.
Unread: Final = WrapValidator(_ignore_json)
