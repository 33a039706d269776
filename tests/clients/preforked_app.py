"""A FastAPI application with clients at module level. gunicorn loads it, and it calls the model, before the fork."""

import asyncio
import json
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tpuserve_client import AsyncClient, Client, Prediction, TpuserveError

# The model server's addresses by protocol, as `preforking` passes them.
_ADDRESSES: Final[dict[str, str]] = json.loads(os.environ["MODEL_SERVERS"])

blocking: Final = {protocol: Client(address) for protocol, address in _ADDRESSES.items()}
awaited: Final = {protocol: AsyncClient(address) for protocol, address in _ADDRESSES.items()}
app: Final = FastAPI()


def _inputs(number: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.full((1, 4), number, np.float32)}


def _document(prediction: Prediction) -> dict[str, Any]:
    return {"pid": os.getpid(), **prediction.to_dict()}


@app.get("/pid")
async def pid() -> dict[str, int]:
    return {"pid": os.getpid()}


@app.get("/sync/{protocol}/{number}")
def predict_blocking(protocol: str, number: int) -> dict[str, Any]:
    return _document(blocking[protocol].predict("affine", _inputs(number)))


@app.get("/async/{protocol}/{number}")
async def predict_awaited(protocol: str, number: int) -> dict[str, Any]:
    return _document(await awaited[protocol].predict("affine", _inputs(number)))


@app.exception_handler(TpuserveError)
def show_error(_request: Request, error: TpuserveError) -> JSONResponse:
    return JSONResponse({"pid": os.getpid(), "error": f"{type(error).__name__}: {error.message}"}, 502)


async def _call_each() -> None:
    for client in awaited.values():
        await client.predict("affine", _inputs(0))


for one in blocking.values():
    one.predict("affine", _inputs(0))
asyncio.run(_call_each())
