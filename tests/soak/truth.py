"""Truth: which version may answer which request, at which time.

A change of versions or labels takes time, in which either version may answer. Once the server has reported the new
version, a request that begins later must get it.
"""

import math
from collections import defaultdict
from dataclasses import dataclass


@dataclass(slots=True)
class _Allowed:
    version: int
    from_s: float
    until_s: float = math.inf


class Truth:
    """The versions of each name over time. A name is a model, or a model and a label. Used by one event loop."""

    def __init__(self) -> None:
        self._allowed: defaultdict[tuple[str, str], list[_Allowed]] = defaultdict(list)

    def begin(self, version: int, at_s: float, model: str, label: str = "") -> None:
        """Allow a version, in addition to those before, from the moment at which the change begins."""
        self._allowed[model, label].append(_Allowed(version, at_s))

    def finish(self, version: int, at_s: float, model: str, label: str = "") -> None:
        """Allow no other version for requests that begin after the server has reported this one."""
        allowed = self._allowed[model, label]
        for one in allowed:
            if one.version != version:
                one.until_s = min(one.until_s, at_s)
        # The last change alone matters for later requests. A request takes less than a minute or two.
        self._allowed[model, label] = [one for one in allowed if one.until_s > at_s - 300]

    def versions(self, from_s: float, until_s: float, model: str, label: str = "") -> set[int]:
        """Return the versions that may answer a request that began and ended at these times."""
        return {one.version for one in self._allowed[model, label] if one.from_s <= until_s and from_s <= one.until_s}
