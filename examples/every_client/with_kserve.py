"""Ask through KServe's clients: the Open Inference Protocol over REST and gRPC, and KServe's V1 over REST.

.oip-clients/bin/python -m examples.every_client.with_kserve GRPC_ADDRESS REST_ADDRESS
"""

import asyncio

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, InferResponse
from kserve.inference_client import RESTConfig

from examples.every_client.question import INPUT, MEASURES, MODEL, PROBABILITIES, SPECIES, Outputs, Server, ask_all


def over_rest(server: Server, *, binary: bool = False) -> Outputs:
    """Send the tensor as JSON, or in binary."""

    async def ask() -> Outputs:
        async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
            return _outputs(await client.infer(f"http://{server.rest}", _request(binary=binary), MODEL))

    return asyncio.run(ask())


def over_rest_binary(server: Server) -> Outputs:
    return over_rest(server, binary=True)


def over_rest_v1(server: Server) -> Outputs:
    """Send `instances`, as for TensorFlow Serving."""

    async def ask() -> Outputs:
        async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
            answer = await client.infer(f"http://{server.rest}", {"instances": MEASURES.tolist()}, MODEL)
            rows = answer["predictions"]
            return {name: np.array([row[name] for row in rows]) for name in (PROBABILITIES, SPECIES)}

    return asyncio.run(ask())


def over_grpc(server: Server) -> Outputs:
    async def ask() -> Outputs:
        async with InferenceGRPCClient(server.grpc) as client:
            return _outputs(await client.infer(_request(binary=True)))

    return asyncio.run(ask())


def over_grpc_typed(server: Server) -> Outputs:
    """Send the numbers in the message's `contents` instead of raw bytes."""

    async def ask() -> Outputs:
        async with InferenceGRPCClient(server.grpc) as client:
            measures = InferInput(INPUT, list(MEASURES.shape), "FP32", MEASURES.ravel().tolist())
            return _outputs(await client.infer(InferRequest(MODEL, [measures])))

    return asyncio.run(ask())


def _request(*, binary: bool) -> InferRequest:
    measures = InferInput(INPUT, list(MEASURES.shape), "FP32")
    measures.set_data_from_numpy(MEASURES, binary_data=binary)
    return InferRequest(MODEL, [measures])


def _outputs(response: InferResponse) -> Outputs:
    return {output.name: output.as_numpy() for output in response.outputs}


if __name__ == "__main__":
    ask_all(
        {
            "kserve InferenceRESTClient, v2": over_rest,
            "kserve InferenceRESTClient, v2 binary": over_rest_binary,
            "kserve InferenceRESTClient, v1": over_rest_v1,
            "kserve InferenceGRPCClient": over_grpc,
            "kserve InferenceGRPCClient, typed": over_grpc_typed,
        }
    )
