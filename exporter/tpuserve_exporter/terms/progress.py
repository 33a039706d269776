"""Interface through which the parts of an export report their progress."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Step:
    """A running step. The display shows `detail` at its end, and `advance` updates the count."""

    title: str
    detail: str = ""
    show: Callable[[str], None] = field(default=lambda how_far: None, repr=False)

    def advance(self, done: int, total: int) -> None:
        """Report that `done` parts of `total` are done: batches, files, megabytes."""
        self.show(f"{done} of {total}")


class Progress(Protocol):
    """Receiver of an export's steps and warnings."""

    def step(self, title: str) -> contextlib.AbstractContextManager[Step]:
        """Show `title` while the body runs, then the time that it took."""
        ...

    def warn(self, message: str) -> None: ...
