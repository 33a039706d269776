"""Every call of KServe's clients, over REST and gRPC. tests/oip_clients/test_clients.py runs it."""

from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from kserve.utils.numpy_codec import from_np_dtype

from tests.oip_clients.checks import ECHOED, HALF, KINDS, SIMPLE, Array, Server, refused, run_checks, same

FIRST, SECOND = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 3, np.int32)


def rest_client() -> InferenceRESTClient:
    return InferenceRESTClient(RESTConfig(protocol="v2"))


def tensor(name: str, array: Array, *, binary: bool) -> InferInput:
    made = InferInput(name, list(array.shape), from_np_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def pair(*, binary: bool = False, model: str = SIMPLE, **more: Any) -> InferRequest:  # noqa: ANN401 - passed on
    inputs = [tensor("INPUT0", FIRST, binary=binary), tensor("INPUT1", SECOND, binary=binary)]
    return InferRequest(model, inputs, **more)


def echo(name: str, array: Array, *, binary: bool, **parameters: Any) -> InferRequest:  # noqa: ANN401 - passed on
    given = {"signature_name": f"echo_{name}", **parameters}
    return InferRequest(KINDS, [tensor("x", array, binary=binary)], parameters=given)


async def check_rest_health(server: Server) -> None:
    url = f"http://{server.rest}"
    async with rest_client() as client:
        assert await client.is_server_live(url) is True
        assert await client.is_server_ready(url) is True
        assert await client.is_model_ready(url, HALF)
        assert not await client.is_model_ready(url, "nobody")


async def check_grpc_health(server: Server) -> None:
    async with InferenceGRPCClient(server.grpc) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(HALF)
        assert not await client.is_model_ready("nobody")


async def check_rest_infer(server: Server) -> None:
    async with rest_client() as client:
        for binary in (False, True):
            for parameters in ({}, {"binary_data_output": True}):
                request = pair(binary=binary, request_id="7", parameters=parameters)
                response = await client.infer(f"http://{server.rest}", request, SIMPLE)
                assert (response.id, response.model_name) == ("7", SIMPLE)
                same(response.get_output_by_name("OUTPUT0").as_numpy(), FIRST + SECOND)
                same(response.get_output_by_name("OUTPUT1").as_numpy(), FIRST - SECOND)


async def check_rest_infer_of_a_dict(server: Server) -> None:
    tensors = [
        {"name": name, "shape": [2, 16], "datatype": "INT32", "data": array.tolist()}
        for name, array in (("INPUT0", FIRST), ("INPUT1", SECOND))
    ]
    async with rest_client() as client:
        response = await client.infer(f"http://{server.rest}", {"inputs": tensors}, SIMPLE)
        same(response.get_output_by_name("OUTPUT0").as_numpy(), FIRST + SECOND)


async def check_rest_requested_outputs(server: Server) -> None:
    async with rest_client() as client:
        wanted = [RequestedOutput("OUTPUT1", {"binary_data": True})]
        response = await client.infer(f"http://{server.rest}", pair(request_outputs=wanted), SIMPLE)
        assert [output.name for output in response.outputs] == ["OUTPUT1"]
        same(response.outputs[0].as_numpy(), FIRST - SECOND)


async def check_rest_every_dtype(server: Server) -> None:
    async with rest_client() as client:
        for name, array in ECHOED.items():
            # This client refuses bytes that are not UTF-8 in a response.
            sent = np.array([b"", "größe".encode()], object) if name == "string" else array
            for binary in (True,) if name == "float16" else (True, False):
                request = echo(name, sent, binary=binary, binary_data_output=binary)
                got = (await client.infer(f"http://{server.rest}", request, KINDS)).outputs[0].as_numpy()
                # This client returns strings as str.
                same(np.array([text.encode() for text in got], object) if name == "string" else got, sent)


async def check_rest_v1(server: Server) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        answer = await client.infer(f"http://{server.rest}", {"instances": [[2.0], [4.0]]}, HALF)
        assert answer == {"predictions": [[4.0], [5.0]]}


async def check_rest_v1_health(server: Server) -> None:
    url = f"http://{server.rest}"
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        assert await client.is_server_live(url) is True
        assert await client.is_model_ready(url, HALF) is True
        with refused(httpx.HTTPStatusError, "Could not find any versions of model nobody", "404 Not Found"):
            await client.is_model_ready(url, "nobody")


async def check_rest_errors(server: Server) -> None:
    url = f"http://{server.rest}"
    async with rest_client() as client:
        with refused(httpx.HTTPStatusError, "Request for unknown model: 'nobody' is not found, '404 Not Found'"):
            await client.infer(url, pair(model="nobody"), "nobody")
        with refused(httpx.HTTPStatusError, "expected 2 inputs but got 1 inputs", "'400 Bad Request'"):
            await client.infer(url, InferRequest(SIMPLE, [tensor("INPUT0", FIRST, binary=True)]), SIMPLE)
        with refused(httpx.HTTPStatusError, "'400 Bad Request'"):
            await client.infer(url, {"inputs": "none"}, SIMPLE)


async def check_grpc_infer(server: Server) -> None:
    async with InferenceGRPCClient(server.grpc) as client:
        response = await client.infer(pair(binary=True, request_id="7"))
        assert (response.id, response.model_name, response.model_version) == ("7", SIMPLE, "1")
        same(response.get_output_by_name("OUTPUT0").as_numpy(), FIRST + SECOND)
        same(response.get_output_by_name("OUTPUT1").as_numpy(), FIRST - SECOND)


async def check_grpc_every_dtype(server: Server) -> None:
    async with InferenceGRPCClient(server.grpc) as client:
        for name, array in ECHOED.items():
            # float16 has no typed contents, and this client sends typed strings as text.
            for binary in (True,) if name in ("float16", "string") else (True, False):
                got = (await client.infer(echo(name, array, binary=binary))).outputs[0].as_numpy()
                same(got, array)


async def check_grpc_zero_rows(server: Server) -> None:
    async with InferenceGRPCClient(server.grpc) as client:
        for name in ("float32", "string", "bool"):
            sent = ECHOED[name][:0]
            same((await client.infer(echo(name, sent, binary=True))).outputs[0].as_numpy(), sent)


async def check_grpc_errors(server: Server) -> None:
    async with InferenceGRPCClient(server.grpc) as client:
        with refused(grpc.RpcError, "NOT_FOUND", "Request for unknown model: 'nobody' is not found"):
            await client.infer(pair(binary=True, model="nobody"))
        mixed = InferRequest(SIMPLE, [tensor("INPUT0", FIRST, binary=True), tensor("INPUT1", SECOND, binary=False)])
        with refused(grpc.RpcError, "INVALID_ARGUMENT", "contents field must not be specified", "'INPUT1'"):
            await client.infer(mixed)


if __name__ == "__main__":
    run_checks(globals())
