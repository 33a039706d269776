"""What the parts of an export report to while they work."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class Step:
    """A step under way. Its `detail` is shown when it ends; `advance` says how far it is."""

    title: str
    detail: str = ""
    show: Callable[[str], None] = field(default=lambda how_far: None, repr=False)

    def advance(self, done: int, total: int) -> None:
        """That `done` parts of `total` are done: batches, files, megabytes."""
        self.show(f"{done} of {total}")


class Progress(Protocol):
    """Where an export reports to."""

    def step(self, title: str) -> contextlib.AbstractContextManager[Step]:
        """Show `title` while the body runs, and how long it took."""
        ...

    def warn(self, message: str) -> None: ...
