"""Ask with the requests of perf_analyzer and genai-perf, in their order, and check what both read of the responses.

.oip-clients/bin/python -m examples.every_client.with_load_generators GRPC_ADDRESS REST_ADDRESS

perf_analyzer's binary needs glibc 2.38, and genai-perf starts it. If `perf_analyzer` is on the path and runs on this
machine, this program runs it too.
"""

import http.client
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

from examples.every_client.question import (
    INPUT,
    MEASURES,
    MODEL,
    PROBABILITIES,
    SPECIES,
    TEXT_INPUT,
    TEXT_MODEL,
    TEXT_OUTPUT,
    TEXTS,
    Array,
    Outputs,
    Server,
    ask_all,
)

TIMEOUT_S = 60.0
HEADER_LENGTH = "Inference-Header-Content-Length"
# The durations that perf_analyzer reads. It stops if one is missing.
DURATIONS = ("success", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def as_perf_analyzer_http(server: Server) -> Outputs:
    """Send what `perf_analyzer -i http` sends."""
    connection = http.client.HTTPConnection(server.rest, timeout=TIMEOUT_S)
    path = f"/v2/models/{MODEL}"
    try:
        metadata, config = _get(connection, path), _get(connection, f"{path}/config")
        _check_description(metadata["inputs"], config)
        _check("statistics" in _get(connection, "/v2")["extensions"], "the server has no extension statistics")
        before = _get(connection, f"{path}/stats")["model_stats"]
        outputs = _infer_over_http(connection, f"{path}/infer")
        after = _get(connection, f"{path}/stats")["model_stats"]
    finally:
        connection.close()
    _check(set(DURATIONS) <= set(after[0]["inference_stats"]), "the statistics lack a duration")
    _check_counted([one["inference_stats"]["queue"]["count"] for one in (before[0], after[0])])
    return outputs


def as_perf_analyzer_grpc(server: Server) -> Outputs:
    """Send what `perf_analyzer -i grpc --async` sends."""
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(messages.ModelMetadataRequest(name=MODEL), timeout=TIMEOUT_S)
        config = stub.ModelConfig(messages.ModelConfigRequest(name=MODEL), timeout=TIMEOUT_S).config
        _check_description(
            [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in metadata.inputs],
            {"max_batch_size": config.max_batch_size, "input": [{"name": tensor.name} for tensor in config.input]},
        )
        before = stub.ModelStatistics(messages.ModelStatisticsRequest(name=MODEL), timeout=TIMEOUT_S).model_stats
        response = stub.ModelInfer(_grpc_request("1"), timeout=TIMEOUT_S)
        after = stub.ModelStatistics(messages.ModelStatisticsRequest(name=MODEL), timeout=TIMEOUT_S).model_stats
    _check(response.id == "1", f"the response has the id {response.id!r} instead of '1'")
    _check_counted([one[0].inference_stats.queue.count for one in (before, after)])
    return _outputs(response)


def as_perf_analyzer_stream(server: Server) -> Outputs:
    """Send what `perf_analyzer -i grpc --async --streaming` sends."""
    with grpc.insecure_channel(server.grpc) as channel:
        responses = _stream(channel, iter([_grpc_request("1")]))
    return _outputs(responses["1"])


def as_genai_perf(server: Server) -> Outputs:
    """Send what `genai-perf profile --endpoint-type kserve --backend tensorrtllm` sends: each text in a stream."""

    def requests() -> Iterator[messages.ModelInferRequest]:
        for number, text in enumerate(TEXTS):
            request = messages.ModelInferRequest(model_name=TEXT_MODEL, id=str(number))
            for name, datatype, raw in (
                ("max_tokens", "INT32", np.int32(256).tobytes()),
                ("stream", "BOOL", b"\x01"),
                (TEXT_INPUT, "BYTES", len(text).to_bytes(4, "little") + text.encode()),
            ):
                request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
                request.raw_input_contents.append(raw)
            request.outputs.add(name=TEXT_OUTPUT)
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            yield request

    with grpc.insecure_channel(server.grpc) as channel:
        responses = _stream(channel, requests())
    texts = [_read(responses[str(number)], TEXT_OUTPUT) for number in range(len(TEXTS))]
    return {SPECIES: np.concatenate(texts).ravel()}


def perf_analyzer_http(server: Server) -> Outputs:
    return _run_perf_analyzer(server, "-u", server.rest)


def perf_analyzer_stream(server: Server) -> Outputs:
    return _run_perf_analyzer(server, "-u", server.grpc, "-i", "grpc", "--async", "--streaming")


def _run_perf_analyzer(server: Server, *options: str) -> Outputs:
    """Run the program itself. It fails if a response differs from the outputs of `as_perf_analyzer_http`."""
    expected = as_perf_analyzer_http(server)
    wanted = [
        {PROBABILITIES: probabilities.tolist(), SPECIES: [species.decode()]}
        for probabilities, species in zip(expected[PROBABILITIES], expected[SPECIES], strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.json"
        rows = [{INPUT: row} for row in MEASURES.tolist()]
        data.write_text(json.dumps({"data": rows, "validation_data": wanted}))
        command = ["perf_analyzer", "-m", MODEL, "--input-data", str(data), "--request-count", "30", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    _check(done.returncode == 0, f"perf_analyzer exited with status {done.returncode}: {done.stdout}{done.stderr}")
    return expected


def _get(connection: http.client.HTTPConnection, path: str) -> Any:  # noqa: ANN401 - a JSON document
    connection.request("GET", path, headers={"User-Agent": "libcurl-agent/1.0", "Accept": "*/*"})
    return json.loads(_body(connection.getresponse()))


def _body(response: http.client.HTTPResponse) -> bytes:
    body = response.read()
    _check(response.status == 200, f"status {response.status}: {body.decode(errors='replace')}")
    return body


def _infer_over_http(connection: http.client.HTTPConnection, path: str) -> Outputs:
    binary = MEASURES.tobytes()
    tensor = {"name": INPUT, "datatype": "FP32", "shape": list(MEASURES.shape)}
    document = {
        "id": "",
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(binary)}}],
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in (PROBABILITIES, SPECIES)],
    }
    header = json.dumps(document, separators=(",", ":")).encode()
    headers = {
        "User-Agent": "libcurl-agent/1.0",
        "Accept": "*/*",
        HEADER_LENGTH: str(len(header)),
        "Content-Type": "application/octet-stream",
    }
    connection.request("POST", path, header + binary, headers)
    response = connection.getresponse()
    body = _body(response)
    end = int(response.headers[HEADER_LENGTH])
    outputs = {}
    for output in json.loads(body[:end])["outputs"]:
        start, end = end, end + output["parameters"]["binary_data_size"]
        outputs[output["name"]] = _decode(output["datatype"], body[start:end], output["shape"])
    return outputs


def _grpc_request(request_id: str) -> messages.ModelInferRequest:
    request = messages.ModelInferRequest(model_name=MODEL, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name=INPUT, datatype="FP32", shape=MEASURES.shape)
    request.raw_input_contents.append(MEASURES.tobytes())
    for name in (PROBABILITIES, SPECIES):
        request.outputs.add(name=name)
    return request


def _stream(
    channel: grpc.Channel, requests: Iterator[messages.ModelInferRequest]
) -> dict[str, messages.ModelInferResponse]:
    """Return the responses by the id of their request. Raises RuntimeError for an error in the stream."""
    responses = {}
    for message in service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests, timeout=TIMEOUT_S):
        _check(not message.error_message, message.error_message)
        final = message.infer_response.parameters["triton_final_response"].bool_param
        _check(final, "the only response of a request is not its final response")
        responses[message.infer_response.id] = message.infer_response
    return responses


def _outputs(response: messages.ModelInferResponse) -> Outputs:
    return {name: _read(response, name) for name in (PROBABILITIES, SPECIES)}


def _read(response: messages.ModelInferResponse, name: str) -> Array:
    index = [output.name for output in response.outputs].index(name)
    output = response.outputs[index]
    return _decode(output.datatype, response.raw_output_contents[index], output.shape)


def _decode(datatype: str, raw: bytes, shape: list[int]) -> Array:
    array: Array = deserialize_bytes_tensor(raw) if datatype == "BYTES" else np.frombuffer(raw, "<f4")
    return array.reshape(shape)


def _check_description(inputs: list[dict[str, Any]], config: dict[str, Any]) -> None:
    """Check what perf_analyzer reads: it removes the first dimension of a shape if max_batch_size is above 0."""
    _check([tensor["name"] for tensor in config["input"]] == [INPUT], "the configuration lacks the input")
    _check([int(size) for size in inputs[0]["shape"]] == [-1, MEASURES.shape[1]], f"the shape is {inputs[0]['shape']}")
    _check(config["max_batch_size"] >= len(MEASURES), f"max_batch_size is {config['max_batch_size']}")


def _check_counted(counts: list[int]) -> None:
    _check(counts[1] == counts[0] + 1, f"queue.count is {counts[1]} after one request, and was {counts[0]} before")


def _check(right: object, message: str) -> None:
    if not right:
        raise RuntimeError(message)


def _runs(program: str) -> bool:
    """Return whether a program is on the path and this machine's libraries suffice for it."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


REAL = {"perf_analyzer, HTTP": perf_analyzer_http, "perf_analyzer, gRPC stream": perf_analyzer_stream}

if __name__ == "__main__":
    ask_all(
        {
            "perf_analyzer, HTTP (replayed)": as_perf_analyzer_http,
            "perf_analyzer, gRPC (replayed)": as_perf_analyzer_grpc,
            "perf_analyzer, gRPC stream (replayed)": as_perf_analyzer_stream,
            "genai-perf, gRPC stream (replayed)": as_genai_perf,
            **(REAL if _runs("perf_analyzer") else {}),
        }
    )
