"""Predictions in a pool of processes to which a client travels as a pickle, as with multiprocessing and celery.

Run as a program, in a separate process, because a fork copies the locks of all threads.
"""

import asyncio
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from tpuserve_client import AsyncClient, Client, Prediction

PROCESSES = 3


def predict_blocking(client: Client, number: int) -> bool:
    with client:
        return _is_right(client.predict("affine", _inputs(number)), number)


def predict_awaited(client: AsyncClient, number: int) -> bool:
    async def predict() -> Prediction:
        async with client:
            return await client.predict("affine", _inputs(number))

    return _is_right(asyncio.run(predict()), number)


def _inputs(number: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.full((1, 4), number, np.float32)}


def _is_right(prediction: Prediction, number: int) -> bool:
    return bool(prediction["y"].tolist() == [[2.0 * number + 1] * 4])


def main(method: str, kind: str, address: str, calls: int) -> None:
    """Print the number of right answers. The parent uses the client before it makes the processes."""
    if kind == "sync":
        client = Client(address)
        client.predict("affine", _inputs(0))
        print(_count_right(method, partial(predict_blocking, client), calls))
    else:
        awaited = AsyncClient(address)
        asyncio.run(_use(awaited))
        print(_count_right(method, partial(predict_awaited, awaited), calls))


async def _use(client: AsyncClient) -> None:
    await client.predict("affine", _inputs(0))


def _count_right(method: str, predict: Callable[[int], bool], calls: int) -> int:
    with multiprocessing.get_context(method).Pool(PROCESSES) as pool:
        # A chunk of one number pickles the client for each call.
        return sum(pool.imap_unordered(predict, range(1, calls + 1), chunksize=1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
