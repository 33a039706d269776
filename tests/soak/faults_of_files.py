"""Faults of files: a full disk, and new certificates, good and bad. None may fail a request."""

import asyncio
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.soak.scene import Scene, expect
from tests.soak.waiting import wait_until
from tests.support.certificates import Pem

DROPPED: Final = "tpuserve_request_log_dropped_total"
WRITTEN: Final = "tpuserve_request_log_records_total"
_PIECE: Final = bytes(4096)


async def full_disk(scene: Scene) -> str:
    """Fill the disk of the request log until the server drops records, then empty it until it writes again."""
    assert scene.server.disk is not None
    filler = scene.server.disk / "filler"
    dropped, failed = await counts(scene, DROPPED), Counter[str]()

    async def drops() -> bool:
        # The server's rotation deletes files, which frees room again.
        fill(filler)
        failed.update(await counts(scene, DROPPED) - dropped - failed)
        return failed.total() > 0

    await wait_until(drops, "dropped records")
    filler.unlink()
    written = await counts(scene, WRITTEN)

    async def writes() -> bool:
        more = await counts(scene, WRITTEN) - written
        return all(more[model] for model in failed)

    await wait_until(writes, f"records of {', '.join(failed)} written again")
    return f"records of {', '.join(failed)} dropped"


def fill(file: Path) -> None:
    """Append to a file until its disk is full."""
    with file.open("ab", buffering=0) as output:
        try:
            while True:
                output.write(_PIECE)
        except OSError:
            return


async def counts(scene: Scene, family: str) -> Counter[str]:
    """Return the sums of a family's series by model."""
    page = await scene.server.get_text("/metrics")
    found = re.findall(rf'^{family}{{model_name="(\w+)".*}} (\S+)$', page, re.MULTILINE)
    sums: Counter[str] = Counter()
    for model, value in found:
        sums[model] += int(float(value))
    return sums


async def new_certificate(scene: Scene) -> str:
    """Send SIGHUP with a certificate whose key is another one's, and then with a good one."""
    server = scene.server
    before = await asyncio.to_thread(server.served_serial)
    good, other = (server.authority.issue("127.0.0.1", "localhost") for _ in range(2))
    start = server.log_size()
    server.write_certificate(good, key=other.key)
    server.process.send_signal(signal.SIGHUP)
    await server.wait_for_log("does not belong to", start)
    expect(await asyncio.to_thread(server.served_serial), before)
    server.write_certificate(good)
    server.process.send_signal(signal.SIGHUP)
    begun_s = time.monotonic()

    async def is_served() -> bool:
        return await asyncio.to_thread(server.served_serial) != before

    await wait_until(is_served, "the new certificate")
    for pem in (good, other):
        _delete(pem)
    return f"served after {time.monotonic() - begun_s:.1f} s"


def _delete(pem: Pem) -> None:
    pem.cert.unlink()
    pem.key.unlink()
