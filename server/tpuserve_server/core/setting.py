"""Setting: the declaration of a flag of `tpuserve serve`, on a field of the options class that has it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Section: TypeAlias = Literal["Listening", "Models", "Batching", "Devices", "Runtime", "Operations"]

# More than a thread can be told to wait for would end it.
MAX_WAIT_S = 1e9


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field says beside its name, type and default: `port: Annotated[int, Setting("Listening", "…")] = 8500`.

    From it come the flag, its environment variable, its checks, its line of `--help` and its row in docs/serving.md.
    `section` and `help` are those of `--help`. The rest is empty where the field says it already:

    - `name`: the flag's, where the field has a unit or a word of the part's own.
    - `shown_default`: the default in `--help`, where the value says nothing.
    - `page`, `page_default`: Markdown of the row, where a link or a detail is worth more than the help's text.
    - `variables`: more environment variables.
    - `at_least`, `at_most`, `below`, `min_length`: bounds of the value.
    - `parse`: makes the value of the flag's text. Raises ValueError.
    """

    section: Section
    help: str
    name: str = ""
    shown_default: str | None = None
    page: str = ""
    page_default: str | None = None
    variables: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None
    min_length: int | None = None
    parse: Callable[[str], Any] | None = None
