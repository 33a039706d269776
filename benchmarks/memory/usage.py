"""Memory of processes by kind and by part, from /proc. Linux only."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)\n((?:[A-Z]\w+: .*\n)+)", re.MULTILINE)
_FIELD = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)
# Parts by a pattern of the mapping's path. The first that is found applies.
_PARTS = {
    "TensorFlow": r"/tensorflow/",
    "JAX": r"/jaxlib/",
    "LiteRT": r"/ai_edge_litert/",
    "h2corn": r"/h2corn/",
    "other libraries": r"\.so|/python[\d.]*$",
    "other files": r"^/",
}
HEAP = "heap, Python's objects, stacks"


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory in MB of 10^6 bytes.

    `rss` counts pages that processes share once for each, `pss` divides them. `private` are the pages of one process
    alone. `anonymous` pages have no copy in a file, so the system cannot reclaim them without swap. `parts` are the
    RSS without anonymous pages by library, and all anonymous pages.
    """

    rss: float
    pss: float
    private: float
    anonymous: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, processes: Iterable[psutil.Process]) -> "Usage":
        """Return the sum over the processes."""
        totals, parts = defaultdict[str, float](float), defaultdict[str, float](float)
        for process in processes:
            for path, details in _MAPPING.findall(Path(f"/proc/{process.pid}/smaps").read_text()):
                sizes = {name: int(kib) * 1024 / 1e6 for name, kib in _FIELD.findall(details)}
                for name, size in sizes.items():
                    totals[name] += size
                parts[HEAP] += sizes["Anonymous"]
                parts[_part(path)] += sizes["Rss"] - sizes["Anonymous"]
        private = totals["Private_Clean"] + totals["Private_Dirty"]
        return cls(totals["Rss"], totals["Pss"], private, totals["Anonymous"], dict(parts))


def _part(path: str) -> str:
    return next((name for name, pattern in _PARTS.items() if re.search(pattern, path)), HEAP)
