"""A tour of TensorFlow Serving's interfaces: its command, its stubs, its URLs. Prints one response of each.

    python examples/drop_in/tour.py

The tour uses nothing of tpuserve's own. It starts the server as `tensorflow_model_server`, calls gRPC through
tensorflow-serving-api and REST through curl, and serves TensorFlow Serving's half_plus_two.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at import.

import grpc
import tensorflow as tf
from google.protobuf import text_format
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

COMMAND = Path(sys.executable).with_name("tensorflow_model_server")
METRICS_PATH = "/monitoring/prometheus/metrics"
TIMEOUT_S = 30

tf1 = tf.compat.v1


def main() -> None:
    """Run the tour. Exits with a non-zero status at the first call that fails."""
    tf.get_logger().setLevel("ERROR")  # Hides the deprecation warning of v1's builder.
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        for version, plus in ((123, 2.0), (124, 3.0)):
            save_half_plus_two(models / "half_plus_two" / f"{version:08}", plus)
        config = models / "models.config"
        config.write_text(configuration(models, label=123))
        monitoring = models / "monitoring.config"
        monitoring.write_text(f'prometheus_config {{ enable: true path: "{METRICS_PATH}" }}')
        flags = (f"--model_config_file={config}", f"--monitoring_config_file={monitoring}")
        with serving(*flags, log=models / "log") as (grpc_port, rest_port):
            with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                print("\n# gRPC: x = [[2], [4]], y = x / 2 + 2 in version 123 (label stable), x / 2 + 3 in 124\n")
                call_every_rpc(channel)
                print("\n# REST\n")
                call_every_route(f"http://127.0.0.1:{rest_port}")
                print("\n# Reload: move the label stable to 124, add the model newcomer, remove the model leaver\n")
                reload(channel, models)
            print("\n# Metrics\n")
            show_metrics(f"http://127.0.0.1:{rest_port}{METRICS_PATH}")


def call_every_rpc(channel: grpc.Channel) -> None:
    """Call PredictionService, ModelService, health and reflection."""
    prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    model = model_service_pb2_grpc.ModelServiceStub(channel)

    show("Predict", prediction.Predict(predict_request(), timeout=TIMEOUT_S))
    by_label = predict_request()
    by_label.model_spec.version_label = "stable"
    show("Predict, label stable", prediction.Predict(by_label, timeout=TIMEOUT_S))

    classify = classification_pb2.ClassificationRequest()
    fill(classify, "classify_x_to_y")
    show("Classify", prediction.Classify(classify, timeout=TIMEOUT_S))

    regress = regression_pb2.RegressionRequest()
    fill(regress, "regress_x_to_y")
    show("Regress", prediction.Regress(regress, timeout=TIMEOUT_S))

    both = inference_pb2.MultiInferenceRequest()
    both.input.example_list.examples.append(example(2.0))
    for method in ("classify", "regress"):
        task = both.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "half_plus_two", f"{method}_x_to_y"
    show("MultiInference", prediction.MultiInference(both, timeout=TIMEOUT_S))

    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "half_plus_two"
    signatures = get_model_metadata_pb2.SignatureDefMap()
    prediction.GetModelMetadata(metadata, timeout=TIMEOUT_S).metadata["signature_def"].Unpack(signatures)
    print("GetModelMetadata\n  signatures:", ", ".join(sorted(signatures.signature_def)))

    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "half_plus_two"
    show("GetModelStatus", model.GetModelStatus(status, timeout=TIMEOUT_S))

    health = health_pb2_grpc.HealthStub(channel)
    show("grpc.health.v1 Check", health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S))
    print("Reflection\n  ", *ProtoReflectionDescriptorDatabase(channel).get_services())


def call_every_route(url: str) -> None:
    """Call every REST route with the curl lines of TensorFlow Serving's documentation."""
    half = f"{url}/v1/models/half_plus_two"
    show_curl(half)
    show_curl(f"{half}/versions/123")
    show_curl(f"{half}/labels/stable/metadata", cut=160)
    show_curl("-d", '{"instances": [[1.0], [2.0], [5.0]]}', f"{half}:predict")
    show_curl("-d", '{"inputs": [[1.0]]}', f"{half}/versions/123:predict")
    show_curl("-d", '{"instances": [[1.0]]}', f"{half}/labels/stable:predict")
    examples = '"examples": [{"x": 1.0}, {"x": 2.0}]'
    show_curl("-d", f'{{"signature_name": "classify_x_to_y", {examples}}}', f"{half}:classify")
    context = '"context": {"x": 4.0}, "examples": [{}, {"x": 2.0}]'
    show_curl("-d", f'{{"signature_name": "regress_x_to_y", {context}}}', f"{half}:regress")
    show_curl("-d", '{"instances": ["a"]}', f"{half}:predict")
    show_curl(f"{url}/v1/models/nobody")


def reload(channel: grpc.Channel, models: Path) -> None:
    """Reload the configuration: add one model, remove one, move a label."""
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = model_management_pb2.ReloadConfigRequest()
    text_format.Parse(configuration(models, label=124, other="newcomer"), request.config)
    show("HandleReloadConfigRequest", stub.HandleReloadConfigRequest(request, timeout=TIMEOUT_S))
    stable = predict_request()
    stable.model_spec.version_label = "stable"
    show("Predict, label stable, after the reload", prediction.Predict(stable, timeout=TIMEOUT_S))
    show("Predict, model newcomer", prediction.Predict(predict_request("newcomer"), timeout=TIMEOUT_S))
    try:
        while True:  # The server unloads it in the background.
            prediction.Predict(predict_request("leaver"), timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        print(f"Predict, model leaver\n  {error.code().name}: {error.details()}")


def configuration(models: Path, *, label: int, other: str = "leaver") -> str:
    """Return a ModelServerConfig: half_plus_two with two versions and the label `stable`, and one more model."""
    half = models / "half_plus_two"
    return f"""
    model_config_list {{
      config {{
        name: "half_plus_two" base_path: "{half}" model_platform: "tensorflow"
        model_version_policy {{ all {{}} }}
        version_labels {{ key: "stable" value: {label} }}
      }}
      config {{ name: "{other}" base_path: "{half}" model_platform: "tensorflow" }}
    }}
    """


def predict_request(model: str = "half_plus_two") -> predict_pb2.PredictRequest:
    """Return a request with x = [[2.0], [4.0]]."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([[2.0], [4.0]]))
    return request


def fill(request: classification_pb2.ClassificationRequest | regression_pb2.RegressionRequest, signature: str) -> None:
    """Set the model and signature of a request with an `input`, and add two examples."""
    request.model_spec.name, request.model_spec.signature_name = "half_plus_two", signature
    request.input.example_list.examples.extend([example(2.0), example(4.0)])


def example(x: float) -> tf.train.Example:
    """Return an example with the feature x."""
    return tf.train.Example(
        features=tf.train.Features(feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=[x]))})
    )


def show(what: str, message: Message) -> None:
    """Print name and response on two lines."""
    print(f"{what}\n  {text_format.MessageToString(message, as_one_line=True)}", flush=True)


def show_curl(*arguments: str, cut: int = 400) -> None:
    """Run curl and print its output."""
    quoted = " ".join(f"'{argument}'" if argument.startswith("{") else argument for argument in arguments)
    answer = subprocess.run(
        ["curl", "-s", "-m", str(TIMEOUT_S), *arguments], capture_output=True, text=True, check=True
    )
    text = json.dumps(json.loads(answer.stdout))
    print(f"curl {quoted}\n  {text[:cut]}{'...' if len(text) > cut else ''}", flush=True)


def show_metrics(url: str) -> None:
    """Print the request counts that TensorFlow Serving's dashboards use first."""
    page = subprocess.run(["curl", "-s", "-f", url], capture_output=True, text=True, check=True).stdout
    counts = [line for line in page.splitlines() if line.startswith(":tensorflow:serving:request_count")]
    print(f"curl {url}", *counts, sep="\n  ", flush=True)


@contextlib.contextmanager
def serving(*flags: str, log: Path) -> Iterator[tuple[int, int]]:
    """Run the command until the block ends, and yield both ports."""
    grpc_port, rest_port = free_ports()
    command = [str(COMMAND), f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1", *flags]
    print("$", " ".join([COMMAND.name, *command[1:]]), flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(process, rest_port, log)
        yield grpc_port, rest_port
    finally:
        process.terminate()
        print("exit status", process.wait(TIMEOUT_S))


def wait_until_ready(process: subprocess.Popen[bytes], rest_port: int, log: Path) -> None:
    """Wait until /readyz succeeds, with curl's own retries. Exit with the server's log if the server ends first."""
    retries = ["--retry", "300", "--retry-delay", "1", "--retry-all-errors", "--retry-max-time", "120"]
    url = f"http://127.0.0.1:{rest_port}/readyz"
    waited = subprocess.run(["curl", "-s", "-f", "-o", "/dev/null", *retries, url], check=False)
    if waited.returncode or process.poll() is not None:
        sys.exit(log.read_text())


def free_ports() -> tuple[int, int]:
    """Return two ports without a listener."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def save_half_plus_two(path: Path, plus: float) -> None:
    """Save y = x / 2 + plus, from a tensor or from tf.Examples, like TensorFlow Serving's own script (v1)."""
    with tf.Graph().as_default(), tf1.Session() as session:
        half = tf1.get_variable("a", initializer=0.5, use_resource=True)
        added = tf1.get_variable("b", initializer=plus, use_resource=True)
        serialized = tf1.placeholder(tf.string, [None], "tf_example")
        parsed = tf.io.parse_example(serialized, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], "x")
        y = tf.add(half * x, added, "y")
        session.run(tf1.global_variables_initializer())
        utils = tf1.saved_model.signature_def_utils
        signatures = {
            "serving_default": utils.predict_signature_def({"x": x}, {"y": y}),
            "classify_x_to_y": utils.classification_signature_def(serialized, None, y),
            "regress_x_to_y": utils.regression_signature_def(serialized, y),
        }
        builder = tf1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()


if __name__ == "__main__":
    if shutil.which("curl") is None:
        sys.exit("This tour needs curl. On Debian, run: apt-get install curl")
    main()
