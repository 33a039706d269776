"""Parses the command's options from Python keywords, so that both share names, types and messages."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tpuserve_exporter.command.options import REPORTING, read_options
from tpuserve_exporter.errors import OptionConflict

if TYPE_CHECKING:
    from tpuserve_exporter.options.export_options import ExportOptions

# Options of the command only: its output and its help.
_NOT_KEYWORDS = ("--json", "--help", "--report", "--verbose")


def parse_keywords(command: click.Command, arguments: Sequence[str], keywords: Mapping[str, object]) -> "ExportOptions":
    """Return the options from keywords `given` and positional `arguments`.

    Raises:
        OptionConflict: if a value is invalid.
        TypeError: if a name is not an option.
    """
    known = _options(command)
    words = [word for name, value in keywords.items() for word in _words(_find(name, known), value)]
    try:
        context = command.make_context("export", [*words, "--", *arguments])
    except click.ClickException as error:
        raise OptionConflict(error.format_message()) from error
    parameters = {name: value for name, value in context.params.items() if name not in REPORTING}
    return read_options(parameters)


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by keyword: `--batch-sizes` as `batch_sizes`, `--from` as `from`."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    named = {name: one for one in options for name in one.opts if name.startswith("--") and name not in _NOT_KEYWORDS}
    return {name[2:].replace("-", "_"): one for name, one in named.items()}


def _find(name: str, known: Mapping[str, click.Option]) -> click.Option:
    found = known.get(name.rstrip("_"))
    if found is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else f". Options: {', '.join(sorted(known))}"
        raise TypeError(f"export() has no option {name!r}{hint}")
    return found


def _words(option: click.Option, value: object) -> Iterator[str]:
    """Yield the option as command-line words, or nothing for None and for a flag that is off."""
    name = option.opts[-1]
    if option.is_flag:
        yield from [name] if value else []
    elif option.multiple:
        yield from (f"{name}={item}" for item in _items(value))
    elif value is not None:
        yield f"{name}={_text(value)}"


def _items(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from map(str, value)
    elif value is not None:
        yield str(value)


def _text(value: object) -> str:
    """Return `1,8` for `(1, 8)`, and `module:name` for a function."""
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__name__)}"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(str, value))
    return str(value)
