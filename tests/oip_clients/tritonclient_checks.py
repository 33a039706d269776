"""Every call of tritonclient's blocking clients, over HTTP and gRPC. tests/oip_clients/test_clients.py runs it."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.oip_clients.checks import (
    ECHOED,
    HALF,
    HALF_VERSIONS,
    KINDS,
    LABELS,
    SIMPLE,
    TIMEOUT_S,
    VERSION,
    Array,
    Server,
    refused,
    run_checks,
    same,
)

PACKAGES = (over_http, over_grpc)
BFLOAT16 = np.array([-1.5, 0, 3e38], ml_dtypes.bfloat16)
FIRST, SECOND = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 3, np.int32)
FLOATS_ONLY_IN_BINARY = ("float16", "bfloat16")


@contextmanager
def connect(package: Any, server: Server) -> Iterator[Any]:  # noqa: ANN401 - tritonclient has no types
    client = package.InferenceServerClient(server.rest if package is over_http else server.grpc)
    try:
        yield client
    finally:
        client.close()


def tensor(package: Any, name: str, array: Array, *options: Any) -> Any:  # noqa: ANN401 - tritonclient has no types
    made = package.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, *options)


def pair(package: Any, first: Array = FIRST, second: Array = SECOND) -> list[Any]:  # noqa: ANN401 - as above
    return [tensor(package, "INPUT0", first), tensor(package, "INPUT1", second)]


def echo(client: Any, package: Any, name: str, array: Array, *options: Any, **more: Any) -> Array:  # noqa: ANN401 - as above
    parameters = {"signature_name": f"echo_{name}"}
    result = client.infer(KINDS, [tensor(package, "x", array, *options)], parameters=parameters, **more)
    returned: Array = result.as_numpy("y")
    return returned


def check_health(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready(HALF)
            assert client.is_model_ready(HALF, HALF_VERSIONS[0])
            assert not client.is_model_ready(HALF, "7")
            assert not client.is_model_ready("nobody")


def check_metadata_over_http(server: Server) -> None:
    with connect(over_http, server) as client:
        about = client.get_server_metadata()
        assert {"name", "version", "extensions"} <= about.keys()
        assert {"binary_tensor_data", "classification", "statistics", "model_configuration"} <= {*about["extensions"]}
        model = client.get_model_metadata(SIMPLE)
        assert (model["name"], model["versions"]) == (SIMPLE, [VERSION])
        expected = [{"name": name, "datatype": "INT32", "shape": [-1, 16]} for name in ("INPUT0", "INPUT1")]
        assert model["inputs"] == expected, model
        assert [output["name"] for output in model["outputs"]] == ["OUTPUT0", "OUTPUT1"]
        assert sorted(client.get_model_metadata(HALF)["versions"]) == [*HALF_VERSIONS]
        config = client.get_model_config(SIMPLE)
        assert (config["name"], config["input"][0]["data_type"]) == (SIMPLE, "TYPE_INT32")
        assert config["max_batch_size"] > 0
        assert config["input"][0]["dims"] == [16]


def check_metadata_over_grpc(server: Server) -> None:
    with connect(over_grpc, server) as client:
        assert client.get_server_metadata().name
        model = client.get_model_metadata(SIMPLE)
        assert (model.name, [*model.versions]) == (SIMPLE, [VERSION])
        assert [(one.name, one.datatype, [*one.shape]) for one in model.inputs] == [
            ("INPUT0", "INT32", [-1, 16]),
            ("INPUT1", "INT32", [-1, 16]),
        ]
        config = client.get_model_config(SIMPLE).config
        assert (config.name, [*config.input[0].dims]) == (SIMPLE, [16])
        as_json = client.get_model_metadata(SIMPLE, as_json=True)
        assert as_json["name"] == SIMPLE


def check_same_numbers_over_both_protocols(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            result = client.infer(SIMPLE, pair(package), request_id="7")
            same(result.as_numpy("OUTPUT0"), FIRST + SECOND)
            same(result.as_numpy("OUTPUT1"), FIRST - SECOND)
            response = result.get_response(as_json=True) if package is over_grpc else result.get_response()
            assert (response["id"], response["model_version"]) == ("7", VERSION)


def check_requested_outputs(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            result = client.infer(SIMPLE, pair(package), outputs=[package.InferRequestedOutput("OUTPUT1")])
            same(result.as_numpy("OUTPUT1"), FIRST - SECOND)
            assert result.get_output("OUTPUT0") is None


def check_binary_and_json_mix_over_http(server: Server) -> None:
    for first_binary in (True, False):
        with connect(over_http, server) as client:
            inputs = [
                tensor(over_http, "INPUT0", FIRST, first_binary),
                tensor(over_http, "INPUT1", SECOND, not first_binary),
            ]
            outputs = [
                over_http.InferRequestedOutput("OUTPUT0", binary_data=first_binary),
                over_http.InferRequestedOutput("OUTPUT1", binary_data=not first_binary),
            ]
            result = client.infer(SIMPLE, inputs, outputs=outputs)
            same(result.as_numpy("OUTPUT0"), FIRST + SECOND)
            same(result.as_numpy("OUTPUT1"), FIRST - SECOND)
            assert ("data" in result.get_output("OUTPUT0")) is not first_binary


def check_every_dtype_in_binary(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            for name, array in {**ECHOED, "bfloat16": BFLOAT16}.items():
                same(echo(client, package, name, array), array)


def check_every_dtype_as_json(server: Server) -> None:
    with connect(over_http, server) as client:
        for name, array in ECHOED.items():
            if name in FLOATS_ONLY_IN_BINARY:
                continue
            sent = np.array([b"", "größe".encode()], object) if name == "string" else array
            got = echo(client, over_http, name, sent, False, outputs=[over_http.InferRequestedOutput("y", False)])
            # tritonclient returns JSON strings as str.
            same(np.array([text.encode() for text in got], object) if name == "string" else got, sent)


def check_half_precision_is_refused_as_json(server: Server) -> None:
    with connect(over_http, server) as client:
        half = np.array([1.5], np.float16)
        with refused(InferenceServerException, "[400]", "FP16", "binary"):
            echo(client, over_http, "float16", half, False)
        with refused(InferenceServerException, "[400]", "FP16", "binary"):
            echo(client, over_http, "float16", half, outputs=[over_http.InferRequestedOutput("y", False)])


def check_zero_rows_of_every_dtype(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            for name, array in {**ECHOED, "bfloat16": BFLOAT16}.items():
                same(echo(client, package, name, array[:0]), array[:0])
            empty = FIRST[:0]
            same(client.infer(SIMPLE, pair(package, empty, empty)).as_numpy("OUTPUT0"), empty)


def check_zero_rows_as_json(server: Server) -> None:
    with connect(over_http, server) as client:
        got = echo(client, over_http, "float32", ECHOED["float32"][:0], False)
        same(got, np.zeros(0, np.float32))


def check_scalar_output(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            values = tensor(package, "x", np.array([1, 2, 3.5], np.float32))
            result = client.infer(KINDS, [values], parameters={"signature_name": "scalar"})
            same(result.as_numpy("total"), np.array(6.5, np.float32))


def check_versions(server: Server) -> None:
    x = np.array([[2.0]], np.float32)
    for package in PACKAGES:
        with connect(package, server) as client:
            for version, y in (("", 4.0), (HALF_VERSIONS[1], 4.0), (HALF_VERSIONS[0], 3.0)):
                got = client.infer(HALF, [tensor(package, "x", x)], model_version=version).as_numpy("y")
                same(got, np.array([[y]], np.float32))


def check_compression_over_http(server: Server) -> None:
    with connect(over_http, server) as client:
        for request in (None, "gzip", "deflate"):
            for response in (None, "gzip", "deflate"):
                result = client.infer(
                    SIMPLE,
                    pair(over_http),
                    request_compression_algorithm=request,
                    response_compression_algorithm=response,
                )
                same(result.as_numpy("OUTPUT0"), FIRST + SECOND)


def check_compression_over_grpc(server: Server) -> None:
    with connect(over_grpc, server) as client:
        for algorithm in ("gzip", "deflate"):
            result = client.infer(SIMPLE, pair(over_grpc), compression_algorithm=algorithm)
            same(result.as_numpy("OUTPUT0"), FIRST + SECOND)


def check_classification(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            result = client.infer(
                SIMPLE, pair(package), outputs=[package.InferRequestedOutput("OUTPUT0", class_count=2)]
            )
            assert result.as_numpy("OUTPUT0").tolist() == [[b"18:15", b"17:14"], [b"34:15", b"33:14"]]
            with refused(InferenceServerException, "unsupported type 'BYTES'"):
                echo(
                    client,
                    package,
                    "string",
                    ECHOED["string"],
                    outputs=[package.InferRequestedOutput("y", class_count=1)],
                )


def check_classification_as_json(server: Server) -> None:
    with connect(over_http, server) as client:
        wanted = [over_http.InferRequestedOutput("OUTPUT0", binary_data=False, class_count=1)]
        result = client.infer(SIMPLE, pair(over_http), outputs=wanted)
        assert result.as_numpy("OUTPUT0").tolist() == [["18:15"], ["34:15"]]


def check_labels(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            images = tensor(package, "IMAGE", np.array([[b"12345"], [b"123"]], object))
            wanted = [package.InferRequestedOutput("CLASSIFICATION", class_count=1)]
            result = client.infer(LABELS, [images], outputs=wanted)
            assert result.as_numpy("CLASSIFICATION").tolist() == [[b"1.000000:1:one"], [b"1.000000:3:three"]]


def check_async_infer(server: Server) -> None:
    with connect(over_http, server) as client:
        pending = [client.async_infer(SIMPLE, pair(over_http)) for _ in range(4)]
        for one in pending:
            same(one.get_result().as_numpy("OUTPUT0"), FIRST + SECOND)
    with connect(over_grpc, server) as client:
        responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for _ in range(4):
            client.async_infer(SIMPLE, pair(over_grpc), lambda result, error: responses.put((result, error)))
        for _ in range(4):
            result, error = responses.get(timeout=TIMEOUT_S)
            assert error is None, error
            same(result.as_numpy("OUTPUT0"), FIRST + SECOND)


def check_parameters(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            custom = {"text": "a", "number": 3, "flag": True, "ratio": 0.5}
            result = client.infer(SIMPLE, pair(package), priority=1, timeout=60_000_000, parameters=custom)
            same(result.as_numpy("OUTPUT0"), FIRST + SECOND)


def check_sequences_are_refused_by_name(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            for sequence_id in (7, "seven"):
                with refused(InferenceServerException, "parameter 'sequence_", "not supported"):
                    client.infer(SIMPLE, pair(package), sequence_id=sequence_id, sequence_start=True)


def check_errors_name_the_fault(server: Server) -> None:
    for package, unknown, invalid in (
        (over_http, "[404]", "[400]"),
        (over_grpc, "[StatusCode.NOT_FOUND]", "[StatusCode.INVALID_ARGUMENT]"),
    ):
        with connect(package, server) as client:
            inputs = pair(package)
            with refused(InferenceServerException, f"{unknown} Request for unknown model: 'nobody' is not found"):
                client.infer("nobody", inputs)
            with refused(InferenceServerException, unknown, "'simple' version 7 is not found"):
                client.infer(SIMPLE, inputs, model_version="7")
            with refused(InferenceServerException, invalid, "expected 2 inputs but got 1 inputs", "['INPUT1']"):
                client.infer(SIMPLE, inputs[:1])
            with refused(InferenceServerException, invalid, "unexpected inference input 'other'"):
                client.infer(SIMPLE, [inputs[0], tensor(package, "other", SECOND)])
            with refused(InferenceServerException, invalid, "already exists"):
                client.infer(SIMPLE, [inputs[0], inputs[0]])
            with refused(InferenceServerException, invalid, "unexpected inference output 'other'"):
                client.infer(SIMPLE, inputs, outputs=[package.InferRequestedOutput("other")])
            with refused(InferenceServerException, invalid, "'INPUT0'", "'INT64'", "'INT32'"):
                client.infer(SIMPLE, pair(package, FIRST.astype(np.int64)))
            with refused(InferenceServerException, invalid, "'INPUT0'", "[-1,16]", "[2,8]"):
                client.infer(SIMPLE, pair(package, FIRST[:, :8]))
            with refused(InferenceServerException, "'echo_nothing'"):
                echo(client, package, "nothing", ECHOED["float32"])


def check_errors_of_other_calls(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            for call in (client.get_model_metadata, client.get_model_config):
                with refused(InferenceServerException, "Request for unknown model: 'nobody' is not found"):
                    call("nobody")
            with refused(InferenceServerException, "'nobody'"):
                client.get_inference_statistics("nobody")
            with refused(InferenceServerException, "shared memory"):
                client.register_system_shared_memory("region", "/region", 64)


def check_statistics_count_requests_and_rows(server: Server) -> None:
    with connect(over_http, server) as client:
        before = client.get_inference_statistics(SIMPLE)["model_stats"][0]
        client.infer(SIMPLE, pair(over_http))
        after = client.get_inference_statistics(SIMPLE)["model_stats"][0]
        assert (after["name"], after["version"]) == (SIMPLE, VERSION)
        assert after["inference_count"] - before["inference_count"] == len(FIRST)
        assert after["execution_count"] - before["execution_count"] == 1
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            counts = [one["inference_stats"][name]["count"] for one in (before, after)]
            assert counts[1] - counts[0] == 1, name
        names = {one["name"] for one in client.get_inference_statistics()["model_stats"]}
        assert {KINDS, SIMPLE, HALF} <= names
    with connect(over_grpc, server) as client:
        assert client.get_inference_statistics(SIMPLE).model_stats[0].inference_stats.success.count > 0


def check_repository_index(server: Server) -> None:
    with connect(over_http, server) as client:
        found = {(one["name"], one["version"], one["state"]) for one in client.get_model_repository_index()}
        assert (SIMPLE, VERSION, "READY") in found, found
        assert {(HALF, version, "READY") for version in HALF_VERSIONS} <= found, found
    with connect(over_grpc, server) as client:
        assert (SIMPLE, VERSION, "READY") in {
            (one.name, one.version, one.state) for one in client.get_model_repository_index().models
        }


def check_trace_and_log_settings_are_read(server: Server) -> None:
    for package in PACKAGES:
        with connect(package, server) as client:
            assert client.get_trace_settings() is not None
            assert client.get_log_settings() is not None
            assert client.unregister_cuda_shared_memory() is None


if __name__ == "__main__":
    run_checks(globals())
