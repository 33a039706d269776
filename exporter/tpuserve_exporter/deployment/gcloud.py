"""Commands of gcloud, as words and as lines of a shell script."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Delimiters for values with commas, by preference. See `gcloud topic escaping`.
_DELIMITERS: Final = (",", ";", "|", "#", "@@", "~~", "%%")
_INDENT: Final = " \\\n    "
_END: Final = "JSON"


@dataclass(frozen=True, slots=True)
class GcloudCommand:
    """One command. `comment` states its purpose, and `stdin` is a line of JSON that the command reads."""

    comment: str
    words: tuple[str, ...]
    stdin: str | None = None

    @property
    def text(self) -> str:
        """The command with a comment, as lines of a script. Each flag has a line of its own."""
        flags = [index for index, word in enumerate(self.words) if word.startswith("--")]
        first = flags[0] if flags else len(self.words)
        lines = _INDENT.join([shlex.join(self.words[:first]), *map(shlex.quote, self.words[first:])])
        here = "" if self.stdin is None else f" <<'{_END}'\n{self.stdin}\n{_END}"
        return f"# {self.comment}\n{lines}{here}\n"


def dictionary(flag: str, values: Mapping[str, str]) -> str:
    """Return `--flag=KEY=VALUE,…` with a delimiter that no value contains.

    Raises ValueError if every known delimiter occurs in a value.
    """
    delimiter = next((one for one in _DELIMITERS if not any(one in value for value in values.values())), None)
    if delimiter is None:
        raise ValueError(f"the values of {flag} contain all of {' '.join(_DELIMITERS)}")
    prefix = "" if delimiter == "," else f"^{delimiter}^"
    return f"{flag}={prefix}{delimiter.join(f'{key}={value}' for key, value in values.items())}"
