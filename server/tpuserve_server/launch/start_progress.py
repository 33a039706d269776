"""Progress of a start: one line that changes in a notebook's cell, otherwise lines on standard error."""

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

Show: TypeAlias = Callable[[str], None]


def choose_show(progress: bool) -> Show:
    """Return the function that shows a progress text. In a notebook, each text replaces the previous one."""
    if not progress:
        return lambda text: None
    return _in_cell() if _in_notebook() else lambda text: print(f"tpuserve: {text}", file=sys.stderr)  # noqa: T201


def _in_notebook() -> bool:
    """Return whether IPython runs as a kernel. A notebook has imported IPython already; this function never does."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _in_cell() -> Show:
    from IPython.display import display

    handle: Any = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
