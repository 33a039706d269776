"""An AsyncClient made at module level, before any event loop runs, and used in two runs of asyncio."""

import asyncio

from tests.clients.faults.trial import X
from tpuserve_client import AsyncClient


def run_two_loops(address: str) -> list[str]:
    """Return the outcomes: of making the client, of a call in each of two asyncio.run, and of closing in a third."""
    try:
        client = AsyncClient(address, timeout_s=5.0)
    except Exception as error:  # the report names every error
        return [_text(error)]
    outcomes = ["ok"]

    async def call() -> None:
        await client.predict("affine", {"x": X})

    for work in (call, call, client.close):
        try:
            asyncio.run(work())
        except Exception as error:  # the report names every error
            outcomes.append(_text(error))
        else:
            outcomes.append("ok")
    return outcomes


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:150]
