"""The Open Inference Protocol over gRPC: single requests with both forms of contents, and streams."""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from tests.soak.connections import Connections
from tests.soak.hints import Hints
from tests.soak.question import MOST_ROWS, Question, Tensors, WrongAnswerError
from tests.soak.reply import Reply
from tpuserve_formats.messages.oip import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelStreamInferResponse,
)

PROTOCOL: Final = "OIP gRPC"
_SERVICE: Final = "/inference.GRPCInferenceService/"
# Request numbers that a stream uses, from the number of its question on.
NUMBERS: Final = 5


async def infer_raw(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send the tensors as raw bytes."""
    return await _infer(at, question, _request(question, is_raw=True), hints)


async def infer_typed(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send the tensors as lists of values."""
    return await _infer(at, question, _request(question, is_raw=False), hints)


async def stream(at: Connections, question: Question, hints: Hints) -> Reply:
    """Send several requests in one stream, and check all answers, which come in their order."""
    questions = [
        dataclasses.replace(question, number=question.number + index, rows=index % MOST_ROWS + 1)
        for index in range(NUMBERS)
    ]
    bodies = [_request(one, is_raw=index % 2 == 0).SerializeToString() for index, one in enumerate(questions)]
    contents = await at.stream(_SERVICE + "ModelStreamInfer", bodies, hints)
    if len(contents) != len(questions):
        raise WrongAnswerError(f"{len(contents)} answers to {len(questions)} requests of a stream")
    return [_streamed(one, content) for one, content in zip(questions, contents, strict=True)][-1]


async def metadata(at: Connections, question: Question, hints: Hints) -> Reply:
    request = ModelMetadataRequest(name=question.model)
    content = await at.call(_SERVICE + "ModelMetadata", request.SerializeToString(), hints)
    response = ModelMetadataResponse.FromString(content)
    if {one.name for one in response.inputs} != question.inputs.keys():
        raise WrongAnswerError(f"metadata of {question.model}: {str(response)[:300]}")
    return Reply(None)


async def _infer(at: Connections, question: Question, request: ModelInferRequest, hints: Hints) -> Reply:
    content = await at.call(_SERVICE + "ModelInfer", request.SerializeToString(), hints)
    return _reply(question, ModelInferResponse.FromString(content))


def _streamed(question: Question, content: bytes) -> Reply:
    response = ModelStreamInferResponse.FromString(content)
    if response.error_message:
        raise WrongAnswerError(f"an error without a status: {response.error_message}")
    return _reply(question, response.infer_response)


def _request(question: Question, *, is_raw: bool) -> ModelInferRequest:
    request = ModelInferRequest(
        model_name=question.model, model_version=str(question.version or ""), id=str(question.number)
    )
    for name, values in question.inputs.items():
        is_text = values.dtype == object
        item = request.inputs.add(name=name, datatype="BYTES" if is_text else "INT64", shape=values.shape)
        if is_raw:
            request.raw_input_contents.append(encode_bytes(values) if is_text else values.astype("<i8").tobytes())
        elif is_text:
            item.contents.bytes_contents.extend(values)
        else:
            item.contents.int64_contents.extend(values.ravel().tolist())
    return request


def _reply(question: Question, response: ModelInferResponse) -> Reply:
    if response.id != str(question.number):
        raise WrongAnswerError(f"id {response.id} for the request {question.number}")
    outputs: Tensors = {}
    for item, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        flat = np.array(list(decode_bytes(raw)), object) if item.datatype == "BYTES" else np.frombuffer(raw, "<i8")
        outputs[item.name] = flat.reshape(tuple(item.shape))
    return Reply(question.prove(outputs), int(response.model_version))


def encode_bytes(values: "np.ndarray[tuple[int, ...], np.dtype[np.object_]]") -> bytes:
    """Return a BYTES tensor: the length of each element in four bytes, and the element."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values.ravel())


def decode_bytes(raw: bytes) -> Iterator[bytes]:
    """Yield the elements of a BYTES tensor."""
    position = 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        yield raw[position + 4 : position + 4 + length]
        position += 4 + length
