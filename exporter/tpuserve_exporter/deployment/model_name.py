"""The name of the served model."""

import re
from typing import Final

from tpuserve_exporter.errors import OptionConflict

_FORM: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)


def choose_name(name: str | None, default: str) -> str:
    """Return `name`, or `default` if it is None.

    Raises OptionConflict for characters that could have another meaning in a manifest or a command.
    """
    chosen = default if name is None else name
    if not _FORM.fullmatch(chosen):
        raise OptionConflict(
            f"{chosen!r} is not a model name of up to 63 letters, digits, '-', '_' and '.'. Set another --model-name"
        )
    return chosen
