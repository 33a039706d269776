"""A process that forks while an asyncio call over gRPC is pending. Prints the outcomes of the child and the parent.

Run as a program, in a separate process, because a fork copies the locks of all threads.
"""

import asyncio
import os
import sys
from collections.abc import Callable

import numpy as np

from tpuserve_client import AsyncClient, Client, Prediction, TpuserveError

X = np.ones((1, 4), np.float32)


async def fork_during_call(grpc_address: str, rest_address: str) -> None:
    client, rest, blocking = AsyncClient(grpc_address), AsyncClient(rest_address), Client(grpc_address)
    pending = asyncio.create_task(client.predict("affine", {"x": X}))
    await asyncio.sleep(0)  # the task sends its request, and waits for the response
    if (child := os.fork()) == 0:
        asyncio.events._set_running_loop(None)  # the child leaves the parent's loop
        _print("child, AsyncClient over gRPC", lambda: asyncio.run(client.predict("affine", {"x": X})))
        _print("child, AsyncClient over REST", lambda: asyncio.run(rest.predict("affine", {"x": X})))
        _print("child, Client over gRPC", lambda: blocking.predict("affine", {"x": X}))
        os._exit(0)
    first = await pending
    await asyncio.to_thread(os.waitpid, child, 0)
    second = await client.predict("affine", {"x": X})
    _print("parent, the pending call", lambda: first)
    _print("parent, the next call", lambda: second)
    await client.close()


def _print(what: str, predict: Callable[[], Prediction]) -> None:
    try:
        outcome = "right" if predict()["y"].tolist() == [[3.0] * 4] else "wrong"
    except TpuserveError as error:
        outcome = type(error).__name__
    print(f"{what}: {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(fork_during_call(*sys.argv[1:]))
