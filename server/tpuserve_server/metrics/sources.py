"""Sources: metrics of other parts of the host, such as Envoy, which join the page."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

# Returns a page in Prometheus' text format with TYPE lines and samples only. It blocks for about a second at most.
Read = Callable[[], str]


class Sources:
    """Reads the pages of other parts for each page. A page is rendered on one thread at a time, which owns it."""

    def __init__(self) -> None:
        """Start without parts."""
        self._reads: dict[str, Read] = {}
        self._failures: Counter[str] = Counter()

    def add(self, name: str, read: Read) -> None:
        """Read another part from now on. `name` is its label in the metric of failures."""
        self._reads[name] = read
        self._failures[name] = 0

    def read(self) -> str:
        """Return the pages of all parts. A part that fails is omitted and counted."""
        return "".join(self._try(name, read) for name, read in self._reads.items())

    def failures(self) -> Mapping[str, int]:
        """Return how often each part has failed."""
        return dict(self._failures)

    def _try(self, name: str, read: Read) -> str:
        try:
            return read()
        except Exception as error:
            # The page must show the server's own metrics, whatever another part raises.
            if not self._failures[name]:
                _log.warning("The metrics page lacks those of %s: %s", name, error)
            self._failures[name] += 1
            return ""
