"""Commands with a frozen dataclass of options, which declares the type, flag and help of each option once.

Each field declares a click parameter. A field with another such dataclass is a group that commands share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DECLARED: Final = "declared"

_Options = TypeVar("_Options", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class _Parameter:
    kind: type[click.Parameter]
    flags: tuple[str, ...]
    settings: Mapping[str, Any]  # click's settings, of any type


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of options, with `changes` to this command's settings by option name."""

    kind: "type[DataclassInstance]"
    changes: Mapping[str, Mapping[str, Any]]


def option(*flags: str, **settings: Any) -> Any:  # noqa: ANN401  a field of any type, with click's settings
    """Declare an option with the flags and settings of click.option. Its value has the field's name."""
    return field(metadata={_DECLARED: _Parameter(click.Option, flags, settings)})


def argument(**settings: Any) -> Any:  # noqa: ANN401  a field of any type, with click's settings
    """Declare an argument with the settings of click.argument."""
    return field(metadata={_DECLARED: _Parameter(click.Argument, (), settings)})


def group(kind: "type[_Options]", **changes: Mapping[str, Any]) -> "_Options":
    """Declare a field with a group of options."""
    declared: _Options = field(metadata={_DECLARED: _Group(kind, changes)})
    return declared


def command(
    kind: type[_Options],
    cls: type[click.Command],
    **settings: Any,  # noqa: ANN401  click's settings
) -> Callable[[Callable[[_Options], None]], click.Command]:
    """Create a click command from a function that takes `kind`. The function's docstring is the command's help."""

    def decorate(function: Callable[[_Options], None]) -> click.Command:
        @wraps(function)
        def called(**values: object) -> None:
            function(_filled(kind, values))

        return click.command(cls=cls, params=_parameters(kind, {}), **settings)(called)

    return decorate


def with_values(options: _Options, values: Mapping[str, object]) -> _Options:
    """Return a copy of the options with `values` set, also in groups. Ignore unknown names."""
    changes: dict[str, object] = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if is_dataclass(value) and not isinstance(value, type):
            changes[each.name] = with_values(value, values)
        elif each.name in values:
            changes[each.name] = values[each.name]
    return replace(options, **changes)


def _parameters(
    kind: "type[DataclassInstance]", changes: Mapping[str, Mapping[str, Any]]
) -> list[click.Parameter]:  # in the order of the help
    found: list[click.Parameter] = []
    for each in fields(kind):
        declared = each.metadata[_DECLARED]
        if isinstance(declared, _Group):
            found += _parameters(declared.kind, declared.changes)
        else:
            settings = {**declared.settings, **changes.get(each.name, {})}
            found.append(declared.kind([each.name, *declared.flags], **settings))
    return found


def _filled(kind: type[_Options], values: Mapping[str, object]) -> _Options:
    found: dict[str, object] = {}
    for each in fields(kind):
        declared = each.metadata[_DECLARED]
        is_group = isinstance(declared, _Group)
        found[each.name] = _filled(declared.kind, values) if is_group else values[each.name]
    return kind(**found)
