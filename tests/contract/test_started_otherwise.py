"""TensorFlow Serving's contract: what other flags and files change, each on a server of its own."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc import StatusCode
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2, prediction_service_pb2_grpc

from tests.contract.conftest import Models
from tests.contract.serving_client import ServingClient, predict_request, refused
from tests.contract.serving_models import save_half_plus_two
from tests.e2e.running_server import run_configured_server
from tests.saved_models import write_logs

pytestmark = pytest.mark.timeout(180)

Start = Callable[..., AbstractContextManager[ServingClient]]


@pytest.fixture(params=["envoy", "python"])
def start(request: pytest.FixtureRequest, models: Models, tmp_path: Path) -> Start:
    """Start a server of `half` (or of `base_path`) with more flags."""

    @contextmanager
    def started(
        *flags: str, base_path: Path = models.half, credentials: grpc.ChannelCredentials | None = None
    ) -> Iterator[ServingClient]:
        of_model = ("--model_name=half", f"--model_base_path={base_path}")
        with (
            run_configured_server(
                request.param, tmp_path / "log", *of_model, *flags, model="half", credentials=credentials
            ) as server,
            ServingClient(server.grpc, server.rest) as client,
        ):
            yield client

    return started


def test_outputs_as_tensor_content_if_asked(start: Start) -> None:
    with start("--enable_serialization_as_tensor_content") as client:
        output = client.predict(predict_request(x=[[2.0]])).outputs["y"]
    assert np.frombuffer(output.tensor_content, np.float32).tolist() == [4.0]
    assert not output.float_val


def test_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "serving.sock"
    with start(f"--grpc_socket_path={path}"), grpc.insecure_channel(f"unix:{path}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        assert list(stub.Predict(predict_request(x=[[2.0]]), timeout=60).outputs["y"].float_val) == [4.0]


def test_no_cors_headers_unless_asked(start: Start) -> None:
    with start() as client:
        reply = client.post("/v1/models/half:predict", {"instances": [[2.0]]}, origin="http://example.com")
    assert "access-control-allow-origin" not in reply.headers


def test_batching_parameters(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "batching"
    file.write_text("max_batch_size { value: 4 } batch_timeout_micros { value: 0 } num_batch_threads { value: 1 }")
    with start("--enable_batching", f"--batching_parameters_file={file}") as client:
        assert list(client.predict(predict_request(x=[[2.0]] * 4)).outputs["y"].float_val) == [4.0] * 4
        message = "Task size 5 is larger than maximum input batch size 4"
        with refused(StatusCode.INVALID_ARGUMENT, message):
            client.predict(predict_request(x=[[2.0]] * 5))


def test_large_requests_are_split_if_asked(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "batching"
    file.write_text(
        "max_batch_size { value: 16 } max_execution_batch_size { value: 4 }\n"
        "enable_large_batch_splitting { value: true }"
    )
    with start("--enable_batching", f"--batching_parameters_file={file}") as client:
        rows = [[float(row)] for row in range(11)]
        answer = client.predict(predict_request(x=rows)).outputs["y"]
    np.testing.assert_array_equal(tf.make_ndarray(answer), np.array(rows) / 2 + 3)


def test_batching_parameters_of_one_version(start: Start, tmp_path: Path) -> None:
    version = save_half_plus_two(tmp_path / "m" / "1")
    (version / "batching_params.pbtxt").write_text("max_batch_size { value: 2 }")
    flags = ("--enable_batching", "--enable_per_model_batching_parameters")
    with start(*flags, base_path=version.parent) as client:
        message = "Task size 3 is larger than maximum input batch size 2"
        with refused(StatusCode.INVALID_ARGUMENT, message):
            client.predict(predict_request(x=[[2.0]] * 3))


def test_a_batched_input_without_rows_of_its_own(start: Start) -> None:
    with start("--enable_batching") as client, refused(StatusCode.INVALID_ARGUMENT, ""):
        client.predict(predict_request(x=2.0, signature=""))


def test_tls_on_both_protocols(start: Start, tmp_path: Path) -> None:
    import http.client
    import ssl

    import trustme

    authority = trustme.CA()
    server, client_certificate = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.org")
    root = authority.cert_pem.bytes()

    def quoted(pem: bytes) -> str:
        return pem.decode().replace("\n", "\\n")

    file = tmp_path / "ssl"
    file.write_text(
        f'server_key: "{quoted(server.private_key_pem.bytes())}"\n'
        f'server_cert: "{quoted(b"".join(blob.bytes() for blob in server.cert_chain_pems))}"\n'
        f'custom_ca: "{quoted(root)}"\nclient_verify: true\n'
    )
    file.chmod(0o600)
    key, chain = client_certificate.private_key_pem, client_certificate.cert_chain_pems
    credentials = grpc.ssl_channel_credentials(root, key.bytes(), b"".join(blob.bytes() for blob in chain))
    with start(f"--ssl_config_file={file}", credentials=credentials) as client:
        with grpc.secure_channel(client.grpc_address, credentials) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            assert list(stub.Predict(predict_request(x=[[2.0]]), timeout=60).outputs["y"].float_val) == [4.0]
        with grpc.secure_channel(client.grpc_address, grpc.ssl_channel_credentials(root)) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            with refused(StatusCode.UNAVAILABLE, ""):
                stub.Predict(predict_request(x=[[2.0]]), timeout=60)
        context = ssl.create_default_context(cadata=root.decode())
        with client_certificate.private_key_and_cert_chain_pem.tempfile() as own:
            context.load_cert_chain(own)
        host, _, port = client.rest_url.removeprefix("http://").partition(":")
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        connection.request("GET", "/v1/models/half")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("kind", ["predict_log", "classify_log", "regress_log", "multi_inference_log"])
def test_warm_up_records_of_every_kind(start: Start, tmp_path: Path, kind: str) -> None:
    version = save_half_plus_two(tmp_path / "m" / "1")
    write_logs(version, _record(kind))
    with start(base_path=version.parent) as client:
        assert list(client.predict(predict_request(x=[[2.0]])).outputs["y"].float_val) == [3.0]


def _record(kind: str) -> prediction_log_pb2.PredictionLog:
    log = prediction_log_pb2.PredictionLog()
    if kind == "predict_log":
        log.predict_log.request.CopyFrom(predict_request(x=[[1.0]]))
        return log
    request = getattr(log, kind).request
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
    request.input.example_list.examples.add().features.feature["x"].CopyFrom(feature)
    if kind == "multi_inference_log":
        task = request.tasks.add(method_name="tensorflow/serving/regress")
        task.model_spec.name, task.model_spec.signature_name = "half", "regress_x_to_y"
    else:
        request.model_spec.name = "half"
        request.model_spec.signature_name = "classify_x_to_y" if kind == "classify_log" else "regress_x_to_y"
    return log


def test_requests_are_logged_where_the_configuration_says(
    request: pytest.FixtureRequest, models: Models, tmp_path: Path
) -> None:
    config = tmp_path / "models.config"
    config.write_text(f"""
        model_config_list {{ config {{
          name: "half" base_path: "{models.half}" model_platform: "tensorflow"
          logging_config {{
            log_collector_config {{ type: "tfrecord" filename_prefix: "{tmp_path}/logged" }}
            sampling_config {{ sampling_rate: 1.0 }}
          }}
        }} }}""")
    with (
        run_configured_server("python", tmp_path / "log", f"--model_config_file={config}", model="half") as server,
        ServingClient(server.grpc, server.rest) as client,
    ):
        client.predict(predict_request(x=[[2.0]]))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    files = [str(path) for path in tmp_path.glob("logged*")]
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record)
        for file in files
        for record in tf.compat.v1.io.tf_record_iterator(file)
    ]
    asked = [log.predict_log.request for log in logs]
    assert [list(tf.make_ndarray(one.inputs["x"]).flat) for one in asked] == [[2.0]]
    assert isinstance(asked[0], predict_pb2.PredictRequest)
    assert logs[0].predict_log.response.outputs["y"].float_val[:] == [4.0]
