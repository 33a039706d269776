"""Setting: declares a flag of `tpuserve serve`, on the field of the options class that holds its value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Section: TypeAlias = Literal["Models", "Listening", "Batching", "Devices", "Runtime", "Operations", "Access"]

# Waiting longer than a thread supports would raise and end the thread.
MAX_WAIT_S = 1e9


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of a flag beyond its field's name, type and default.

    For example: `port: Annotated[int, Setting("Listening", "…")] = 8500`.

    The flag, its environment variable and its checks derive from it. `section` and `help` appear in `--help`; the lines
    of the core's flags are in `startup/flag_help.py`. The other properties are empty if the field already implies them:

    - `name`: the flag's name, if the field's name has a unit or another word.
    - `shown_default`: the default in `--help`, if the value alone is not clear.
    - `variables`: more environment variables.
    - `at_least`, `at_most`, `below`, `min_length`: bounds of the value.
    - `is_cache`: the server writes to the directory. A start warns if it cannot.
    - `parse`: converts the flag's text to the value. Raises ValueError.
    """

    section: Section
    help: str = ""
    name: str = ""
    shown_default: str | None = None
    variables: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    min_length: int | None = None
    is_cache: bool = False
    parse: Callable[[str], Any] | None = None
