"""How a start is shown while the caller waits: one line that changes in a notebook's cell, else lines to stderr."""

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

Show: TypeAlias = Callable[[str], None]


def choose_show(progress: bool) -> Show:
    """For where the caller runs. The result shows a text in place of the one before."""
    if not progress:
        return lambda text: None
    return _in_cell() if _in_notebook() else lambda text: print(f"tpuserve: {text}", file=sys.stderr)  # noqa: T201


def _in_notebook() -> bool:
    """Whether IPython runs as a kernel. It is imported in every notebook, and never imported here otherwise."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _in_cell() -> Show:
    from IPython.display import display

    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
