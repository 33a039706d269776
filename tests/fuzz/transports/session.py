"""Attacks a server over one transport: `python -m tests.fuzz.transports.session TRANSPORT SECONDS FINDINGS COUNTS`.

TRANSPORT is http2 or http1. A fifth argument is the first seed of a round to replay. A finding writes the seeds of its
round to FINDINGS, and ends the process with a traceback and status 1.
"""

import sys
import time
from pathlib import Path

from tests.fuzz.shared_counts import SharedCounts
from tests.fuzz.transports.attacked_server import attacked_server

_ROUND = 200


def main(transport: str, seconds: str, findings: str, counts: str, first: str = "") -> None:
    """Attack in rounds until the time is over. Without a seed, every session has others."""
    shared = SharedCounts.create(Path(counts))
    start = int(first) if first else time.time_ns() // 1000
    with attacked_server(transport) as attacked:
        end_s = time.monotonic() + float(seconds)
        while time.monotonic() < end_s:
            before = attacked.answered
            try:
                attacked.attack(range(start, start + _ROUND))
            except BaseException:
                (Path(findings) / f"{transport}-{start}").write_text(f"{start}\n")
                raise
            answered = attacked.answered - before
            for index in range(_ROUND):
                shared.add(is_accepted=index < answered)
            start += _ROUND


if __name__ == "__main__":
    main(*sys.argv[1:])
