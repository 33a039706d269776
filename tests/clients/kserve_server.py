"""KServe's own model server with one model, for tests of the client. It runs in `.oip-clients`.

The model `mirror` returns its inputs. `python -m tests.clients.kserve_server` prints its ports as JSON, and serves
until SIGTERM. KServe's ModelServer would listen on all interfaces, so this program starts its two front-ends itself.
"""

import asyncio
import json
import socket
from typing import Any

import grpc.aio
import uvicorn
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.model_repository import ModelRepository
from kserve.model_server import app
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer

TENSORS = {"x": {"name": "x", "datatype": "FP32", "shape": [-1, 4]}}


class Mirror(Model):  # type: ignore[misc]  # kserve is not installed where mypy runs
    """A model that returns its inputs."""

    def __init__(self) -> None:
        super().__init__("mirror")
        self.ready = True

    async def get_input_types(self) -> list[dict[str, Any]]:
        return list(TENSORS.values())

    async def get_output_types(self) -> list[dict[str, Any]]:
        return list(TENSORS.values())

    def predict(self, payload: InferRequest, *_: object) -> InferResponse:
        is_binary = payload.use_binary_outputs
        outputs = []
        for tensor in payload.inputs:
            array = tensor.as_numpy()
            output = InferOutput(tensor.name, list(array.shape), tensor.datatype)
            output.set_data_from_numpy(array, binary_data=is_binary)
            outputs.append(output)
        return InferResponse(payload.id or "", self.name, outputs, use_binary_outputs=is_binary)


async def main() -> None:
    models = ModelRepository()
    models.update(Mirror())
    plane, extension = DataPlane(models), ModelRepositoryExtension(models)
    server = grpc.aio.server(interceptors=(ExceptionToStatusInterceptor(),))
    add_GRPCInferenceServiceServicer_to_server(InferenceServicer(plane, extension), server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    RESTServer("kserve.model_server:app", plane, extension, 0).create_application()  # adds the routes to `app`
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"grpc": grpc_port, "http": listener.getsockname()[1]}), flush=True)
        await uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off")).serve([listener])
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
