"""What all parts of a manifest have in common, and how a reader ignores what it does not need."""

from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticUseDefault

# What pads an input.
PadValue: TypeAlias = bool | int | float | str


class Part(BaseModel):
    """One object of the manifest. Later exporters may write more fields, which a reader ignores."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _ignore_json(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:  # noqa: ANN401
    if info.mode == "json":
        raise PydanticUseDefault
    return check(value)


# Marks a field that the exporter writes and the server does not read: any JSON is accepted, and the default read.
Unread: Final = WrapValidator(_ignore_json)
