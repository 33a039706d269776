"""A client of the Open Inference Protocol for the contract tests: its own messages over gRPC, binary data over HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import grpc

from tests.contract.serving_client import Reply, ServingClient
from tpuserve_formats.dtypes import Array
from tpuserve_formats.messages.oip import (
    GRPC_INFERENCE_SERVICE,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import decode_raw, encode_raw

TIMEOUT_S = 60
LENGTH = "inference-header-content-length"


class Channel:
    """A channel to the methods of the service."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def call(self, name: str, request: Any, response: Any) -> Any:  # noqa: ANN401 (messages)
        method: Any = self._channel.unary_unary(
            f"/{GRPC_INFERENCE_SERVICE.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return method(request, timeout=TIMEOUT_S)

    def infer(self, request: ModelInferRequest) -> ModelInferResponse:
        response: ModelInferResponse = self.call("ModelInfer", request, ModelInferResponse)
        return response

    def stream(self, requests: Iterator[ModelInferRequest]) -> Iterator[ModelStreamInferResponse]:
        method: Any = self._channel.stream_stream(
            f"/{GRPC_INFERENCE_SERVICE.full_name}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ModelStreamInferResponse.FromString,
        )
        return iter(method(requests, timeout=TIMEOUT_S))


def request(model: str = "half", signature: str = "", request_id: str = "", **inputs: Array) -> ModelInferRequest:
    message = ModelInferRequest(model_name=model, id=request_id)
    if signature:
        message.parameters["signature_name"].string_param = signature
    for name, array in inputs.items():
        message.inputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        message.raw_input_contents.append(bytes(encode_raw(array)))
    return message


def outputs(response: ModelInferResponse) -> dict[str, Array]:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: decode_raw(output.datatype, output.shape, raw) for output, raw in pairs}


def tensor(name: str, array: Array) -> tuple[dict[str, Any], bytes]:
    raw = bytes(encode_raw(array))
    shape = list(array.shape)
    parameters = {"binary_data_size": len(raw)}
    return {"name": name, "datatype": datatype_of(array.dtype), "shape": shape, "parameters": parameters}, raw


def post_binary(serving: ServingClient, path: str, document: dict[str, Any], binary: bytes, **headers: str) -> Reply:
    text = json.dumps(document).encode()
    return serving.http("POST", path, text + binary, inference_header_content_length=str(len(text)), **headers)


def binary_outputs(reply: Reply) -> dict[str, Array]:
    assert reply.status == 200, reply.body
    length = int(reply.headers[LENGTH])
    found, position = {}, length
    for output in json.loads(reply.body[:length])["outputs"]:
        end = position + output["parameters"]["binary_data_size"]
        found[output["name"]] = decode_raw(output["datatype"], output["shape"], reply.body[position:end])
        position = end
    assert position == len(reply.body)
    return found
